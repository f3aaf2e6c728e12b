"""The rules of the MSCCL format, by name."""

from __future__ import annotations

__all__ = ["RULES"]

RULES = {
    "xml": "The file is XML with one element `algo`.",
    "attribute": "Every attribute that the parser asks for is there.",
    "integer": "Numbers are integers.",
    "text": "A string has at most 255 characters, the name of the algorithm 63.",
    "attributes": "An element has at most 16 attributes.",
    "children": "An element has at most 1024 elements in it.",
    "nodes": "A rank stores at most 4096 elements: all `gpu`, and its own thread blocks and steps.",
    "protocol": "`proto` is Simple, LL or LL128.",
    "collective": "`coll` is a call that the dialect knows.",
    "place": "`inplace` and `outofplace` are 0 or 1, and an algorithm is for at least one of the two.",
    "bytes": "`minBytes` is below `maxBytes`; with Azure, a `maxBytes` of 0 is no limit.",
    "threads": "`nthreads` is a multiple of 32.",
    "loop": "`nchunksperloop` is at least 1.",
    "gpus": "There is one `gpu` a rank, numbered from 0 to `ngpus` - 1.",
    "channels": "`nchannels` is 1 to 32, and every `chan` is below it.",
    "chunks": "Chunks of a buffer are not negative; unless 0, input and output times the ranks they are a part "
    "of make `nchunksperloop`.",
    "block ids": "Thread blocks of a rank are numbered from 0 without a gap.",
    "blocks": "A rank has at most 216 thread blocks (Azure: 1024).",
    "peers": "A peer is -1 or another rank.",
    "connection": "A peer and a channel are served by one thread block that sends and one that receives.",
    "blocks per channel": "At most 32 thread blocks of a rank send on a channel, and 32 receive.",
    "steps": "A thread block has at most 256 steps (Azure: 64), numbered from 0 in their order.",
    "kind": "A step is of a type that the interpreter carries out.",
    "buffer": "A buffer is i, o or s.",
    "range": "What a step reads and writes lies in its buffer.",
    "peer needed": "A step that sends or receives is in a thread block with that peer.",
    "count": "A step has 1 to 71 chunks, a nop 0.",
    "dependence": "`depid` and `deps` are both -1, or name a thread block of the rank and a step of it.",
    "own block": "A step does not wait for its own thread block.",
    "8 bits": "A thread block that others wait for has a number up to 127.",
    "hasdep": "A step that others wait for has hasdep=1.",
    "nop": "A nop waits for something.",
    "chain": "After nops, the last wait is on the step itself.",
    "pairing": "On each connection, sends and receives are as many, of the same counts, in the same order.",
    "deadlock": "Nothing waits for ever when a connection holds one send, or as many as are given.",
    "race": "Of two steps that use one chunk, of which one writes, one waits for the other.",
    "result": "Each rank ends with what the collective asks for, whatever outputs and scratch held before.",
}
"""What is checked; the last four by running the algorithm."""
