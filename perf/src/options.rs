//! Command-line options, named as in nccl-tests where it has them.

use std::path::PathBuf;

use crate::collective::{ALL, Collective};
use crate::types::{DataType, OPS, Op, TYPES};

pub const USAGE: &str = "\
usage: oxccl-perf [OPTIONS] [COLLECTIVE]...

Checks and times the collectives of a libnccl.so. Collectives: all_reduce broadcast sendrecv exchange all_gather
reduce_scatter reduce alltoall; all of them without a name. What the library does not offer is shown, not failed.

  --lib PATH            the library (default: libnccl.so.2 beside this program, else by the loader)
  --vs PATH             a second one: both are timed in turns, and the ratio is printed (implies --processes)
  --rounds N            turns per row with --vs, the median counts (default 3)
  --ranks N|gpus        ranks; `gpus`: one per GPU, two if there is one (default gpus)
  --processes           a process per rank (default: a thread per rank)
  -b, -e BYTES          first and last size, with K, M or G (default 8 and 32M)
  -f N | -i BYTES       factor or step between sizes (default -f 4)
  -n N, -w N            timed and warm-up calls (default 20 and 5)
  -d TYPE               int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2, all (float)
  -o OP                 sum prod max min avg, all (default sum)
  -r ROOT               root of broadcast and reduce, -1 for each in turn (default 0)
  -c 0|1                check results and the bytes around the buffers (default 1)
  -G N                  capture the calls in a CUDA graph and launch it N times
  --require NAMES       fail if the library lacks one of these collectives (comma-separated)
  -J FILE               write the results as JSON
  --timeout SECONDS     for one step of all ranks (default 300)
  --device-count        print the number of GPUs and leave";

#[derive(Debug)]
pub struct Options {
    pub library: PathBuf,
    pub versus: Option<PathBuf>,
    pub rounds: usize,
    /// 0: as many as there are GPUs.
    pub ranks: usize,
    pub processes: bool,
    pub first: usize,
    pub last: usize,
    pub step: Step,
    pub iterations: usize,
    pub warmups: usize,
    pub types: Vec<DataType>,
    pub ops: Vec<Op>,
    /// None: each in turn.
    pub root: Option<usize>,
    pub check: bool,
    pub graph_launches: usize,
    pub json: Option<PathBuf>,
    pub timeout: u64,
    pub collectives: Vec<Collective>,
    /// Those that must not be missing.
    pub required: Vec<Collective>,
}

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Times(usize),
    Plus(usize),
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Options, String> {
        let mut o = Options {
            library: default_library(),
            versus: None,
            rounds: 3,
            ranks: 0,
            processes: false,
            first: 8,
            last: 32 << 20,
            step: Step::Times(4),
            iterations: 20,
            warmups: 5,
            types: vec![DataType::by_name("float").expect("a name of the table")],
            ops: vec![Op::by_name("sum").expect("a name of the table")],
            root: Some(0),
            check: true,
            graph_launches: 0,
            json: None,
            timeout: 300,
            collectives: Vec::new(),
            required: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().map(String::as_str).ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--lib" => o.library = value()?.into(),
                "--vs" => (o.versus, o.processes) = (Some(value()?.into()), true),
                "--rounds" => o.rounds = positive(value()?)?,
                "--ranks" => {
                    let text = value()?;
                    o.ranks = if text == "gpus" { 0 } else { positive(text)? };
                }
                "--processes" => o.processes = true,
                "-b" => o.first = bytes(value()?)?,
                "-e" => o.last = bytes(value()?)?,
                "-f" => o.step = Step::Times(positive(value()?)?),
                "-i" => o.step = Step::Plus(bytes(value()?)?.max(1)),
                "-n" => o.iterations = positive(value()?)?,
                "-w" => o.warmups = number(value()?)?,
                "-d" => {
                    let name = value()?;
                    o.types = match name {
                        "all" => TYPES.to_vec(),
                        _ => vec![
                            DataType::by_name(name).ok_or_else(|| format!("there is no type `{name}`"))?,
                        ],
                    };
                }
                "-o" => {
                    let name = value()?;
                    o.ops = match name {
                        "all" => OPS.to_vec(),
                        _ => {
                            vec![Op::by_name(name).ok_or_else(|| format!("there is no operation `{name}`"))?]
                        }
                    };
                }
                "-r" => {
                    let text = value()?;
                    o.root = if text == "-1" { None } else { Some(number(text)?) };
                }
                "-c" => o.check = number(value()?)? != 0,
                "-G" => o.graph_launches = number(value()?)?,
                "--require" => o.required = value()?.split(',').map(collective).collect::<Result<_, _>>()?,
                "-J" => o.json = Some(value()?.into()),
                "--timeout" => o.timeout = positive(value()?)? as u64,
                name => o.collectives.push(collective(name)?),
            }
        }
        if o.collectives.is_empty() {
            o.collectives = ALL.to_vec();
        }
        if o.last < o.first {
            o.last = o.first;
        }
        if matches!(o.step, Step::Times(1)) {
            o.last = o.first;
        }
        Ok(o)
    }

    /// The sizes to run, in bytes.
    pub fn sizes(&self) -> Vec<usize> {
        let next = |size: &usize| match self.step {
            Step::Times(factor) => size.checked_mul(factor),
            Step::Plus(step) => size.checked_add(step),
        };
        let sizes = std::iter::successors(Some(self.first), next);
        let mut sizes: Vec<usize> = sizes.take_while(|size| *size <= self.last).take(10_000).collect();
        sizes.dedup();
        sizes
    }
}

fn default_library() -> PathBuf {
    let name = "libnccl.so.2";
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

fn collective(name: &str) -> Result<Collective, String> {
    Collective::by_name(name).ok_or_else(|| format!("there is no collective or option `{name}`"))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn positive(text: &str) -> Result<usize, String> {
    number(text).and_then(|n| if n > 0 { Ok(n) } else { Err("0 is too few".into()) })
}

fn bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_follow_factor_and_step() {
        assert_eq!(parse("-b 8 -e 1K -f 8").unwrap().sizes(), [8, 64, 512]);
        assert_eq!(parse("-b 1M -e 3M -i 1M").unwrap().sizes(), [1 << 20, 2 << 20, 3 << 20]);
        assert_eq!(parse("-b 64 -e 8").unwrap().sizes(), [64]);
        assert_eq!(parse("-b 0 -e 0").unwrap().sizes(), [0]);
        assert_eq!(parse("-b 8 -e 64 -f 1").unwrap().sizes(), [8]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in [
            "-d float128",
            "-o xor",
            "all_reduc",
            "-b",
            "-n 0",
            "-b 12Q",
            "--ranks none",
            "--require all_reduce,x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_second_library_needs_processes() {
        assert!(parse("--vs other.so").unwrap().processes);
    }
}
