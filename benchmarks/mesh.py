"""The mesh watch's detectors in one table: found, false, minutes to detect, cause first.

Online Boutique, churn, unkind meshes and injected faults, for the trained model, an untrained one, none,
and plain rules. The phase `table` of `packages.mesh.benchmarks`, which has the others of the mesh watch.

    python -m benchmarks.mesh [--quick] [--phases a,b] [--data FOLDER]
"""

import sys

from packages.mesh.benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["table"]))
