"""What the worker starts for a flow run: asks `flow_runs.py` to fork it, and ends as it ends.

`python begin_flow_run.py SOCKET`. Only the standard library is imported: there is one such process for each flow run.
"""

import json
import os
import signal
import socket
import sys

LONGEST_BYTES = 100


def main() -> None:
    """A signal to end is passed on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(sys.argv[1])
        request = {"arguments": [], "environment": dict(os.environ), "in_own_session": False}
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2])
        pid = int(connection.recv(LONGEST_BYTES))
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        code = int(connection.recv(LONGEST_BYTES) or "1")
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
