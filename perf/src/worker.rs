//! One rank: a device, a communicator, two buffers. It does what the coordinator's lines say and answers each with one.
//!
//! A worker is a thread or a process of its own; it does not know which. Memory is allocated and freed only in steps
//! of their own, which all ranks finish before the next begins: ranks that share a context would otherwise wait for
//! each other's kernels inside the driver.

use std::path::Path;
use std::time::Instant;

use crate::collective::{Call, Collective, Region};
use crate::cuda::{DevicePtr, Driver, Graph, Stream};
use crate::nccl::{Comm, Failure, ID_BYTES, Nccl, UniqueId};
use crate::types::{DataType, Op};

/// Bytes around every buffer that no call may touch.
const PAD: usize = 4096;
const CANARY: u8 = 0xa5;
/// Bytes compared at a time.
const CHUNK: usize = 8 << 20;

pub struct Worker {
    rank: usize,
    nranks: usize,
    driver: Driver,
    nccl: Nccl,
    stream: Stream,
    comm: Comm,
    /// Send area and receive area, each with a pad on both sides.
    areas: Option<[DevicePtr; 2]>,
    capacity: usize,
}

impl Worker {
    pub fn new(rank: usize, nranks: usize, device: usize, library: &Path) -> Result<Worker, Failure> {
        let driver = Driver::open()?;
        let stream = driver.enter(device)?;
        let nccl = Nccl::open(library)?;
        let comm = std::ptr::null_mut();
        Ok(Worker { rank, nranks, driver, nccl, stream, comm, areas: None, capacity: 0 })
    }

    /// Carries out one command and returns the text of its result.
    pub fn answer(&mut self, line: &str) -> Result<String, Failure> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["id"] => Ok(hex(&self.nccl.unique_id()?.0)),
            ["version"] => Ok(self.nccl.version()?.to_string()),
            ["init", id] => {
                let start = Instant::now();
                self.comm = self.nccl.init(self.nranks, UniqueId(unhex(id)?), self.rank)?;
                Ok(start.elapsed().as_secs_f64().to_string())
            }
            ["alloc", bytes] => {
                self.capacity = number(bytes)?;
                let area = || self.driver.alloc(self.capacity + 2 * PAD);
                self.areas = Some([area()?, area()?]);
                Ok(String::new())
            }
            ["time", iterations, warmups, launches, call @ ..] => {
                let call = self.call(call)?;
                self.time(&call, number(iterations)?, number(warmups)?, number(launches)?)
                    .map(|s| s.to_string())
            }
            ["fill", seed, call @ ..] => {
                let call = self.call(call)?;
                self.fill(&call, number(seed)?).map(|()| String::new())
            }
            ["once", launches, call @ ..] => {
                let call = self.call(call)?;
                self.time(&call, 1, 0, number(launches)?).map(|_| String::new())
            }
            ["check", seed, call @ ..] => {
                let call = self.call(call)?;
                self.check(&call, number(seed)?).map(|wrong| wrong.to_string())
            }
            ["finish"] => {
                for area in self.areas.take().into_iter().flatten() {
                    self.driver.free(area)?;
                }
                if !self.comm.is_null() {
                    self.nccl.destroy(std::mem::replace(&mut self.comm, std::ptr::null_mut()))?;
                }
                Ok(String::new())
            }
            _ => Err(Failure::Error(format!("unknown command `{line}`"))),
        }
    }

    fn call(&self, words: &[&str]) -> Result<Call, Failure> {
        let parsed = match words {
            [collective, t, op, root, count, in_place] => (|| {
                Some(Call {
                    collective: Collective::by_name(collective)?,
                    t: DataType::by_name(t)?,
                    op: Op::by_name(op)?,
                    root: root.parse().ok()?,
                    count: count.parse().ok()?,
                    rank: self.rank,
                    nranks: self.nranks,
                    in_place: *in_place == "1",
                })
            })(),
            _ => None,
        };
        let call = parsed.ok_or_else(|| format!("cannot read the call {words:?}"))?;
        if call.send_bytes().max(call.recv_bytes()) > self.capacity {
            return Err(Failure::Error(format!("{call:?} does not fit into {} bytes", self.capacity)));
        }
        Ok(call)
    }

    /// Send and receive pointers of a call.
    fn buffers(&self, call: &Call) -> Result<(DevicePtr, DevicePtr), Failure> {
        let [send, recv] = self.areas.ok_or_else(|| "no buffers: `alloc` comes first".to_string())?;
        let pad = PAD as u64;
        if call.in_place {
            let (send_at, recv_at) = call.in_place_offsets();
            Ok((recv + pad + send_at as u64, recv + pad + recv_at as u64))
        } else {
            Ok((send + pad, recv + pad))
        }
    }

    /// Seconds per call. With graph launches, one graph holds all iterations and is launched that often.
    fn time(&self, call: &Call, iterations: usize, warmups: usize, launches: usize) -> Result<f64, Failure> {
        let (send, recv) = self.buffers(call)?;
        let enqueue = || call.enqueue(&self.nccl, self.comm, self.stream, send, recv);
        let repeat = |n: usize| (0..n).try_for_each(|_| enqueue());
        let graph: Option<Graph> = match launches {
            0 => None,
            _ => Some(self.driver.capture(self.stream, || repeat(iterations))?),
        };
        // Also lines up the ranks for the measurement.
        repeat(warmups)?;
        self.settle()?;
        let start = Instant::now();
        match &graph {
            None => repeat(iterations)?,
            Some(graph) => (0..launches).try_for_each(|_| graph.launch(self.stream))?,
        }
        self.settle()?;
        Ok(start.elapsed().as_secs_f64() / (iterations * launches.max(1)) as f64)
    }

    fn settle(&self) -> Result<(), Failure> {
        self.driver.synchronize(self.stream)?;
        self.nccl.async_error(self.comm)
    }

    /// Inputs into the send buffer, canaries everywhere else.
    fn fill(&self, call: &Call, seed: usize) -> Result<(), Failure> {
        let (send, _) = self.buffers(call)?;
        for area in self.areas.into_iter().flatten() {
            let used = call.send_bytes().max(call.recv_bytes());
            self.driver.set(area, CANARY, used + 2 * PAD)?;
        }
        for region in call.inputs(seed) {
            each_chunk(region.len, |from, len| {
                let mut bytes = vec![0; len];
                region.pattern.fill(region.start + from, &mut bytes);
                Ok(self.driver.write(send + (region.at + from) as u64, &bytes)?)
            })?;
        }
        // The last of these copies may still be on its way when the call returns.
        Ok(self.driver.synchronize(std::ptr::null_mut())?)
    }

    /// Elements that are wrong, and bytes around the buffers that changed.
    fn check(&self, call: &Call, seed: usize) -> Result<u64, Failure> {
        let (send, recv) = self.buffers(call)?;
        let mut wrong = 0;
        for region in call.outputs(seed) {
            wrong += self.compare(recv, &region, call.t)?;
        }
        let used = call.send_bytes().max(call.recv_bytes());
        if call.in_place {
            let [_, area] = self.areas.expect("buffers() has looked");
            wrong +=
                self.compare_canary(area, PAD)? + self.compare_canary(area + (PAD + used) as u64, PAD)?;
        } else {
            // The send buffer is only read, and a receive buffer that the call does not use stays as it was.
            for region in call.inputs(seed) {
                wrong += self.compare(send, &region, call.t)?;
            }
            let received = if call.outputs(seed).is_empty() { 0 } else { call.recv_bytes() };
            for (area, len) in [(send, call.send_bytes()), (recv, received)] {
                wrong += self.compare_canary(area - PAD as u64, PAD)?;
                wrong += self.compare_canary(area + len as u64, PAD + used - len)?;
            }
        }
        Ok(wrong)
    }

    fn compare(&self, buffer: DevicePtr, region: &Region, t: DataType) -> Result<u64, Failure> {
        let mut wrong = 0;
        each_chunk(region.len, |from, len| {
            let (mut got, mut want) = (vec![0; len], vec![0; len]);
            self.driver.read(buffer + (region.at + from) as u64, &mut got)?;
            region.pattern.fill(region.start + from, &mut want);
            if got != want {
                let elements = got.chunks(t.size).zip(want.chunks(t.size));
                wrong += elements.filter(|(got, want)| !t.same(got, want, region.slack)).count() as u64;
            }
            Ok(())
        })?;
        Ok(wrong)
    }

    fn compare_canary(&self, at: DevicePtr, len: usize) -> Result<u64, Failure> {
        let mut wrong = 0;
        each_chunk(len, |from, len| {
            let mut got = vec![0; len];
            self.driver.read(at + from as u64, &mut got)?;
            wrong += got.iter().filter(|b| **b != CANARY).count() as u64;
            Ok(())
        })?;
        Ok(wrong)
    }
}

fn each_chunk(len: usize, mut f: impl FnMut(usize, usize) -> Result<(), Failure>) -> Result<(), Failure> {
    (0..len).step_by(CHUNK).try_for_each(|from| f(from, CHUNK.min(len - from)))
}

fn number(word: &str) -> Result<usize, Failure> {
    word.parse().map_err(|_| Failure::Error(format!("`{word}` is not a number")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Result<[u8; ID_BYTES], Failure> {
    let mut bytes = [0; ID_BYTES];
    if text.len() != 2 * ID_BYTES || !text.is_ascii() {
        return Err(Failure::Error("a unique id has 256 hexadecimal digits".into()));
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|e| e.to_string())?;
    }
    Ok(bytes)
}

/// The line that answers a command.
pub fn answer_line(result: Result<String, Failure>) -> String {
    match result {
        Ok(text) => format!("ok {text}"),
        Err(Failure::Unsupported(text)) => format!("unsupported {text}"),
        Err(Failure::Error(text)) => format!("error {}", text.replace('\n', " ")),
    }
}

/// Reads what `answer_line` wrote.
pub fn read_answer(line: &str) -> Result<String, Failure> {
    let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
    match kind {
        "ok" => Ok(text.to_string()),
        "unsupported" => Err(Failure::Unsupported(text.to_string())),
        _ => Err(Failure::Error(text.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_line() {
        for result in [Ok("1.5".to_string()), Err(Failure::Unsupported("not yet".into()))] {
            assert_eq!(read_answer(&answer_line(result.clone())), result);
        }
        let error = Err(Failure::Error("two\nlines".into()));
        assert_eq!(read_answer(&answer_line(error)), Err(Failure::Error("two lines".into())));
    }

    #[test]
    fn ids_survive_the_line() {
        let mut id = [0; ID_BYTES];
        id.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 3) as u8);
        assert_eq!(unhex(&hex(&id)), Ok(id));
        assert!(unhex("00").is_err());
    }
}
