"""Take the machine code of other GPUs out of a shared library's fat binaries, in place.

    python fat.py LIB     # keeps sm_90 and sm_90a, and PTX up to 9.0 where a container has neither

Each container stays where it is and valid: what is kept moves to its front, its size shrinks, and zeros follow, which xz
packs to nothing. A container without anything for this GPU keeps its smallest entry.
"""
import struct
import sys

path = sys.argv[1]
data = bytearray(open(path, "rb").read())
shoff, = struct.unpack_from("<Q", data, 0x28)
shentsize, shnum, shstrndx = struct.unpack_from("<HHH", data, 0x3A)
sections = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shentsize) for i in range(shnum)]
names = sections[shstrndx][4]
kept = cut = containers = 0
for section in sections:
    start = names + section[0]
    if data[start:data.index(0, start)] != b".nv_fatbin":
        continue
    pos, end = section[4], section[4] + section[5]
    while pos + 16 <= end:
        magic, _, head, size = struct.unpack_from("<IHHQ", data, pos)
        if magic != 0xBA55ED50:
            pos += 8
            continue
        containers += 1
        at, stop, entries = pos + head, pos + head + size, []
        while at + 64 <= stop:
            kind, _, entry_head = struct.unpack_from("<HHI", data, at)
            padded, = struct.unpack_from("<Q", data, at + 8)
            arch, = struct.unpack_from("<I", data, at + 28)
            assert kind in (1, 2) and 64 <= entry_head < 4096, (path, hex(at), kind, entry_head)
            entries.append((kind, arch, bytes(data[at:at + entry_head + padded])))
            at += entry_head + padded
        assert at == stop, (path, hex(at), hex(stop))
        own = any(kind == 2 and arch == 90 for kind, arch, _ in entries)
        used = [e for kind, arch, e in entries if (kind, arch) == (2, 90) or (kind == 1 and not own and arch <= 90)]
        used = used or [min((e for *_, e in entries), key=len)]
        packed = b"".join(used)
        data[pos + head:stop] = packed + bytes(size - len(packed))
        struct.pack_into("<Q", data, pos + 8, len(packed))
        kept, cut, pos = kept + len(packed), cut + size - len(packed), stop
open(path, "wb").write(data)
print(f"{path}: {containers} containers, kept {kept >> 20} MiB, cut {cut >> 20} MiB")
