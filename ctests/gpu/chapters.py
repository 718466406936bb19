"""Runs the chapters of a PyTorch check one after the other, so that neither a failing nor a hanging one costs the others.

The ranks are processes that share the GPUs at hand. A chapter is a function of `(place, checks)` that every rank runs; each has a time
limit, at which its ranks show their stacks and end. After a chapter that raised or hung, new ranks go on with the next one. One line is
printed per chapter, with the number of checks on all ranks and how many were wrong, and one for the whole.
"""

import faulthandler
import os
import sys
import tempfile
import time
import traceback
from multiprocessing import connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ranks
from counts import Counts
from served import served_by

START_LIMIT = 180
# For the other ranks to report too, once one has failed.
GRACE = 5
SHOWN = 8


def chapter(seconds=60, backends=("nccl", "gloo")):
    """Marks a chapter: its time limit, and the backends that can run it."""

    def mark(function):
        function.seconds, function.backends = seconds, backends
        return function

    return mark


class Checks(Counts):
    """What a chapter compares."""

    def equal(self, what, got, wanted):
        """Bit by bit; the two zeros are equal, and so are NaNs."""
        got, wanted = got.detach().cpu(), wanted.detach().cpu()
        good = got.shape == wanted.shape and got.dtype == wanted.dtype
        if good and (got.dtype.is_floating_point or got.dtype.is_complex):
            wide = torch.complex128 if got.dtype.is_complex else torch.float64
            good = torch.equal(torch.nan_to_num(got.to(wide), nan=12345.0), torch.nan_to_num(wanted.to(wide), nan=12345.0))
        self.true(what, good and (got.dtype.is_floating_point or got.dtype.is_complex or torch.equal(got, wanted)))

    def close(self, what, got, wanted, bound):
        """To within `bound` of the largest value."""
        got, wanted = got.detach().cpu().double(), wanted.detach().cpu().double()
        self.true(what, got.shape == wanted.shape and bool(((got - wanted).abs() <= bound * max(1.0, wanted.abs().max().item())).all()))

    def raises(self, what, call):
        try:
            call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            self.true(what, True)
        else:
            self.true(what + " did not raise", False)

    def note(self, text):
        """Something that cannot be run here, and why."""
        self.notes.append(text)


class Place:
    """Where a chapter runs: this rank, all ranks, the device; and how to join a process group."""

    def __init__(self, rank, nranks, backend, folder):
        self.rank, self.nranks, self.backend, self.folder = rank, nranks, backend, folder
        self.device = torch.device("cpu")
        self.on_gpu = backend == "nccl"
        self.joined = 0
        if self.on_gpu:
            torch.cuda.set_device(rank % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())

    def join(self, eager=True):
        """A default group of all ranks; eager: bound to the device, so that its communicator exists from now on."""
        options = {"device_id": self.device} if eager and self.on_gpu else {}
        store = os.path.join(self.folder, f"store{self.joined}")
        self.joined += 1
        dist.init_process_group(self.backend, init_method=f"file://{store}", rank=self.rank, world_size=self.nranks, **options)

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()


def _rank(rank, nranks, backend, folder, chapters, pipe):
    faulthandler.enable()
    faulthandler.dump_traceback_later(START_LIMIT, exit=True)
    checks = Checks()
    index = -1
    try:
        place = Place(rank, nranks, backend, folder)
        place.join()
        pipe.send((index, checks.count, [], [served_by()] if place.on_gpu else [], None))
        for index, function in enumerate(chapters):
            faulthandler.dump_traceback_later(function.seconds, exit=True)
            checks = Checks()
            function(place, checks)
            place.synchronize()
            dist.barrier()
            pipe.send((index, checks.count, checks.failures, checks.notes, None))
        faulthandler.dump_traceback_later(START_LIMIT, exit=True)
        dist.destroy_process_group()
    except BaseException:
        pipe.send((index, checks.count, checks.failures, checks.notes, traceback.format_exc()))
        sys.stderr.flush()
        os._exit(1)


class _Session:
    """Ranks that run chapters until one of them fails."""

    def __init__(self, chapters, nranks, backend, folder):
        context = mp.get_context("spawn")
        self.chapters, self.nranks = chapters, nranks
        self.pipes, self.processes = [], []
        for rank in range(nranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, nranks, backend, folder, chapters, there))
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def reports(self, index, seconds):
        """What each rank says of this chapter; fewer than all when it failed."""
        found = {}
        deadline = time.monotonic() + seconds + 30
        while len(found) < self.nranks and time.monotonic() < deadline:
            waiting = [self.pipes[rank] for rank in range(self.nranks) if rank not in found]
            for pipe in connection.wait(waiting, max(0, deadline - time.monotonic())):
                rank = self.pipes.index(pipe)
                try:
                    found[rank] = pipe.recv()
                except (EOFError, OSError):
                    self.processes[rank].join(GRACE)
                    why = f"the process ended with {self.processes[rank].exitcode} (1: time limit, or see above)"
                    found[rank] = (index, 0, [], [], why)
                if found[rank][4]:
                    deadline = min(deadline, time.monotonic() + GRACE)
        return found

    def end(self, limit):
        for process in self.processes:
            process.join(limit)
            if process.is_alive():
                process.kill()
                process.join()


def _tell(name, found, nranks, seconds):
    """Prints a chapter's line; checks, wrong ones, and whether it ran to its end."""
    count, failures = sum(r[1] for r in found.values()), [f for r in found.values() for f in r[2]]
    raised = {rank: report[4] for rank, report in found.items() if report[4]}
    whole = len(found) == nranks and not raised
    print(f"{name}: {count} checks, {len(failures)} wrong{'' if whole else ', FAILED'} ({seconds:.1f} s)", flush=True)
    for note in dict.fromkeys(n for r in found.values() for n in r[3] if n):
        print(f"    {note}")
    for failure in list(dict.fromkeys(failures))[:SHOWN]:
        print(f"    wrong: {failure}")
    shown = set()
    for rank, text in sorted(raised.items()):
        # The same exception on every rank is shown once.
        last = text.strip().splitlines()[-1]
        print(f"    rank {rank}: {last}")
        if last not in shown and len(text.splitlines()) > 1:
            shown.add(last)
            print("\n".join("        " + line for line in text.rstrip().splitlines()[-14:]))
    if len(found) < nranks:
        print(f"    no report from ranks {[rank for rank in range(nranks) if rank not in found]}")
    sys.stdout.flush()
    return count, len(failures), whole


def run(chapters, nranks, backend="nccl"):
    """Runs them all; False when one was wrong, raised or hung."""
    ranks.environment()
    left = [function for function in chapters if backend in function.backends]
    for function in chapters:
        if backend not in function.backends:
            print(f"{function.__name__}: not for {backend}")
    asked, complete, checks, wrong, served = len(left), 0, 0, 0, None
    while left:
        with tempfile.TemporaryDirectory() as folder:
            session = _Session(left, nranks, backend, folder)
            started = session.reports(-1, START_LIMIT)
            good = len(started) == nranks and not any(report[4] for report in started.values())
            if not good:
                _tell("start", started, nranks, 0)
                session.end(0)
                break
            if served is None:
                served = "".join(started[0][3])
                print(served, flush=True)
            while left and good:
                begin = time.monotonic()
                found = session.reports(0, left[0].seconds)
                count, bad, good = _tell(left[0].__name__, found, nranks, time.monotonic() - begin)
                checks, wrong, complete = checks + count, wrong + bad, complete + good
                left = left[1:]
            session.end(START_LIMIT if good else 0)
    gpus = torch.cuda.device_count()
    print(f"total: {nranks} ranks, {gpus} GPUs: {complete} of {asked} chapters to the end, {checks} checks, {wrong} wrong")
    return complete == asked and wrong == 0


def main(text, chapters):
    parser = ranks.parser(text.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="CHAPTER", help="only these of: " + " ".join(c.__name__ for c in chapters))
    parser.add_argument("--without", nargs="+", metavar="CHAPTER", default=[], help="not these")
    parser.add_argument("--backend", default="nccl", help="gloo: tries the checks themselves, without a GPU")
    options = parser.parse_args()
    unknown = set((options.only or []) + options.without) - {c.__name__ for c in chapters}
    if unknown:
        parser.error(f"there is no chapter {' '.join(sorted(unknown))}")
    chosen = [c for c in chapters if (not options.only or c.__name__ in options.only) and c.__name__ not in options.without]
    raise SystemExit(not run(chosen, options.ranks, options.backend))
