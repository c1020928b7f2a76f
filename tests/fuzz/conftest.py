"""atheris has wheels for Linux on x86-64 and Python 3.11 to 3.13: elsewhere nothing is collected here."""

import platform
import sys

if (sys.platform, platform.machine()) != ("linux", "x86_64") or sys.version_info >= (3, 14):
    collect_ignore_glob = ["*"]
