#!/usr/bin/env python3
"""Builds and runs the driver conformance programs, and compares what they print with expected/.

Each program prints what the CUDA driver does, without times and addresses. The files in expected/ come from a real
driver, never from the emulated one: they are what the emulated driver has to imitate. `--update` rewrites them and
therefore refuses to run on the emulated driver.

  run.py                      compare, on the driver that the loader finds
  run.py --driver DIR         the same with the libcuda.so.1 of this folder (target/emulator, say)
  run.py --out DIR            also write each program's output to DIR
  run.py --build DIR          only build the programs into DIR
  run.py --programs-in DIR    run what --build put there, on a machine without a compiler
  run.py --update             take the outputs as the expected ones (real driver only)
  run.py capture vmm          only these programs
  run.py --jobs N             so many programs at a time (default: one per processor)

A section that the expected file does not have yet, because no real driver has run it, is named and not compared.

Exit code 0: all outputs as expected; 1: some differ or have no expected output; 2: a program did not build or run.
"""
import argparse
import concurrent.futures
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CANNOT_RUN_HERE = 77
TIME_LIMIT = 600


def build(source, folder):
    program = folder / source.stem
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-cast-function-type", "-Wno-strict-prototypes",
               str(source), "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def driver_file(folder):
    """The libcuda.so.1 that a program gets, with links resolved."""
    probe = ("import ctypes; ctypes.CDLL('libcuda.so.1'); "
             "print([l.split()[-1] for l in open('/proc/self/maps') if 'cuda' in l][0])")
    found = subprocess.run([sys.executable, "-c", probe], env=environment(folder), capture_output=True, text=True)
    return pathlib.Path(found.stdout.strip()).resolve().name if found.returncode == 0 else None


def environment(folder):
    variables = dict(os.environ)
    # Lazy loading is what the programs are about; the application's own choice must not change the outputs.
    variables.pop("CUDA_MODULE_LOADING", None)
    if folder:
        path = str(pathlib.Path(folder).resolve())
        old = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = f"{path}:{old}" if old else path
    return variables


def sections(text):
    """The output in pieces that begin with `== name`, by name."""
    found = {}
    lines = []
    for line in text.splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line, [])
        lines.append(line)
    return found


def compare(expected, output):
    """The lines in which two outputs differ, and the sections that only the second one has."""
    expected, output = sections(expected), sections(output)
    fresh = [name for name in output if name not in expected]
    known = [line for name, lines in output.items() if name in expected for line in lines]
    wanted = [line for lines in expected.values() for line in lines]
    return list(difflib.unified_diff(wanted, known, "expected", "found", lineterm="")), fresh


def run_program(source, options, folder):
    """Builds and runs one program: its exit code and output, or what went wrong."""
    try:
        program = options.programs_in / source.stem if options.programs_in else build(source, pathlib.Path(folder))
        run = subprocess.run([str(program)], env=environment(options.driver), stdout=subprocess.PIPE,
                             text=True, errors="replace", timeout=TIME_LIMIT)
        return run, None
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return None, error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--driver", metavar="DIR")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--build", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--programs-in", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()

    sources = sorted(HERE.glob("*.c"))
    if options.programs:
        known = {source.stem: source for source in sources}
        unknown = [name for name in options.programs if name not in known]
        if unknown:
            print(f"no such program: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
            return 2
        sources = [known[name] for name in options.programs]
    if options.build:
        options.build.mkdir(parents=True, exist_ok=True)
        for source in sources:
            build(source, options.build)
        return 0
    driver = driver_file(options.driver)
    if driver is None:
        print("no libcuda.so.1 found", file=sys.stderr)
        return 2
    if options.update and "emulator" in driver:
        print(f"{driver} is the emulated driver: expected outputs come from a real one", file=sys.stderr)
        return 2
    for folder in [options.out, HERE / "expected" if options.update else None]:
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    equal = differing = broken = skipped = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        runs = list(pool.map(lambda source: run_program(source, options, folder), sources))
        for source, (run, error) in zip(sources, runs):
            name = source.stem
            if run is None:
                print(f"{name}: {error}")
                broken += 1
                continue
            if options.out and run.returncode != CANNOT_RUN_HERE:
                (options.out / f"{name}.txt").write_text(run.stdout)
            if run.returncode == CANNOT_RUN_HERE:
                print(f"{name}: cannot run on this machine")
                skipped += 1
                continue
            if run.returncode != 0:
                print(f"{name}: exit code {run.returncode}")
                broken += 1
                continue
            expected = HERE / "expected" / f"{name}.txt"
            if options.update:
                expected.write_text(run.stdout)
                print(f"{name}: taken")
                equal += 1
                continue
            if not expected.exists():
                print(f"{name}: no expected output yet")
                differing += 1
                continue
            difference, fresh = compare(expected.read_text(), run.stdout)
            if fresh:
                print(f"{name}: not compared: {', '.join(section[3:] for section in fresh)}")
            if difference:
                print(f"{name}: differs")
                print("\n".join("  " + line for line in difference))
                differing += 1
            else:
                print(f"{name}: as expected")
                equal += 1
    print(f"driver {driver}: {equal} passed, {differing + broken} failed, {skipped} cannot run here")
    return 2 if broken else 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
