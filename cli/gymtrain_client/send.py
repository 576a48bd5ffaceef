"""What runs in a pod of a run to send files: `python3 -c THIS FOLDER NAME`. The standard library alone, Python 3.9 on.

A tar of the files goes to stdout. To stderr go a line of JSON before it, with the bytes to come, and one after it, with
a SHA-256 of each file. Exits with 3 where the name isn't there, after a line that says what is.
"""

import hashlib
import json
import os
import sys
import tarfile

MISSING = 3


def _say(what: object) -> None:
    sys.stderr.write(json.dumps(what) + "\n")
    sys.stderr.flush()


class _Hashed:
    """A file, and a digest of what was read of it."""

    def __init__(self, file):  # type: ignore[no-untyped-def]
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size=-1):  # type: ignore[no-untyped-def]
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _send(folder: str, name: str) -> int:
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        _say({"there": sorted(one for one in os.listdir(folder) if not one.startswith("."))})
        return MISSING
    walked = [os.path.join(at, one) for at, _, found in os.walk(path) for one in found]
    files = sorted(one for one in walked or [path] if os.path.isfile(one) and not one.endswith(".new"))
    _say({"bytes": sum(os.path.getsize(one) for one in files)})
    digests = {}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        for one in files:
            with open(one, "rb") as file:
                info = tarfile.TarInfo(os.path.relpath(one, folder))  # no owner, no link: content alone
                info.size = os.fstat(file.fileno()).st_size
                info.mtime = int(os.fstat(file.fileno()).st_mtime)
                hashed = _Hashed(file)  # type: ignore[no-untyped-call]
                tar.addfile(info, hashed)  # type: ignore[arg-type]
                digests[info.name] = hashed.digest.hexdigest()
    sys.stdout.flush()
    _say({"digests": digests})
    return 0


if __name__ == "__main__":
    sys.exit(_send(sys.argv[1], sys.argv[2]))
