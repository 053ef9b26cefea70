"""What importing orl costs: `uv run python benchmarks/import_time.py`. Medians of interleaved runs, milliseconds.

Every import runs in an interpreter of its own, whose own start is measured in the same rounds and taken off.
"""

import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "nothing": "pass",
    "msgspec": "import msgspec",
    "orl_core": "import orl_core, orl_core.config, orl_core.datum, orl_core.render, orl_core.reward, orl_core.tools",
    "orl --help": "import sys; sys.argv = ['orl', '--help']; from orl_launcher.main import main; main()",
}
ROUNDS = 21


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(ROUNDS):
        for name, statement in STATEMENTS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=False, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:12} {value:7.1f} ms, {value - medians['nothing']:7.1f} ms above an empty interpreter")
    print(f"orl_core above msgspec: {medians['orl_core'] - medians['msgspec']:.1f} ms")


if __name__ == "__main__":
    main()
