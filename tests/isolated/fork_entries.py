"""Entries of fork servers that are not as they should be."""

import threading
import time

from hopline.isolated import fork_server


def with_a_second_thread():
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    fork_server.main()
