"""The data that is moved: one large file, many tiny files, the shape of the Montage set; the same sizes in every run."""

import hashlib
import os
import random
import subprocess

from bench.measure import Fail

# The Montage set of the RENKEI-PoP paper: number of files, mean and deviation, smallest and largest, in bytes.
MONTAGE_FILES, MEAN, DEVIATION, SMALLEST, LARGEST = 6756, 2_000_000, 400_000, 292, 27_000_000


def write_random(path, size):
    """A file of bytes that do not compress."""
    with open(path, "wb", buffering=0) as out:
        left = size
        while left > 0:
            left -= out.write(os.urandom(min(left, 8 << 20)))


def make_file(path, size):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_random(path, size)
    return size, 1


def make_many(path, sizes, per_folder, pattern):
    """One file for each size, so many in a folder."""
    for number, size in enumerate(sizes):
        folder = os.path.join(path, f"{number // per_folder:04}")
        if number % per_folder == 0:
            os.makedirs(folder)
        with open(os.path.join(folder, pattern.format(number)), "wb") as out:
            out.write(os.urandom(size))
    return sum(sizes), len(sizes)


def make_tiny(path, count):
    """`count` files of 1 to 20 KB, 200 in a folder."""
    sizes = random.Random(7512)
    return make_many(path, [sizes.randint(1000, 20000) for _ in range(count)], 200, "event-{:06}.dat")


def make_equal(path, count, size):
    return make_many(path, [size] * count, 200, "part-{:06}.dat")


def montage_sizes(count):
    """Normal around the mean; the smallest and the largest of the set are always there."""
    rule = random.Random(6756)
    sizes = [min(LARGEST, max(SMALLEST, int(rule.gauss(MEAN, DEVIATION)))) for _ in range(count)]
    if count >= 2:
        sizes[count // 3], sizes[count // 2] = SMALLEST, LARGEST
    return sizes


def make_montage(path, count):
    return make_many(path, montage_sizes(count), 500, "p{:05}.fits")


def make_archive(path, source):
    """The tree `source` as one tar file."""
    subprocess.run(["tar", "-C", os.path.dirname(source), "-cf", path, os.path.basename(source)], check=True)
    return os.path.getsize(path), 1


def files_of(path):
    """Relative names of the files of a tree; the empty name for a file itself."""
    if os.path.isfile(path):
        return [""]
    return sorted(os.path.relpath(os.path.join(folder, name), path)
                  for folder, _, names in os.walk(path) for name in names)


def warm(path):
    """Reads everything once, so that all commands find the source in memory."""
    for name in files_of(path):
        with open(os.path.join(path, name) if name else path, "rb", buffering=0) as file:
            while file.read(8 << 20):
                pass


def digest(path):
    total = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(8 << 20):
            total.update(block)
    return total.digest()


def digests(path):
    """Size and SHA-256 of every file of a tree or file."""
    join = lambda name: os.path.join(path, name) if name else path  # noqa: E731
    return {name: (os.path.getsize(join(name)), digest(join(name))) for name in files_of(path)}


def compare(wanted, found):
    """The copy must be the source, else the figures mean nothing. Names that are all different are left out of it."""
    if found and not wanted.keys() & found.keys():
        wanted, found = (dict(enumerate(sorted(side.values()))) for side in (wanted, found))
    wrong = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    if wrong:
        raise Fail(f"{len(wrong)} of {len(wanted)} files differ from the source, {str(sorted(wrong)[0])!r} first")
