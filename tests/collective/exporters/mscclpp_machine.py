"""Execution plans of MSCCL++ carried out with integers: memory that ranks write into, counters that they wait on."""

from __future__ import annotations

from collections import Counter

import numpy as np


class Machine:
    def __init__(self, plan, inputs, aliases=None):
        self.plan = plan
        width = inputs[0].shape[1]
        self.memory = []
        for gpu, given in zip(plan.gpus, inputs, strict=True):
            buffers = {
                "i": given.copy(),
                "o": np.zeros((gpu.output_chunks, width), given.dtype),
                # What a slot held before is never zero, so that reading too early shows.
                "s": np.full((gpu.scratch_chunks, width), -(10**9), given.dtype),
            }
            if plan.inplace:
                aliases(gpu.id, buffers)
            self.memory.append(buffers)
        self.signals, self.semaphores = Counter(), Counter()

    def run(self, seed=0):
        random = np.random.default_rng(seed)
        places = {(g.id, b.id): 0 for g in self.plan.gpus for b in g.threadblocks}
        ops = {(g.id, b.id): (g, b) for g in self.plan.gpus for b in g.threadblocks}
        while places:
            moved = False
            for at in random.permutation(list(places)):
                at = tuple(map(int, at))
                gpu, block = ops[at]
                if places[at] == len(block.ops):
                    del places[at]
                    moved = True
                elif self.step(gpu, block, block.ops[places[at]]):
                    places[at] += 1
                    moved = True
            assert moved, f"stuck at {places}"
        assert not +self.signals and not +self.semaphores, "something is left over for the next call"
        return self.memory

    def step(self, gpu, block, op):
        if op.name == "sem_acquire":
            keys = [(gpu.id, number) for number in op.semaphore_ids]
            return self.take(self.semaphores, keys)
        if op.name == "sem_release":
            self.semaphores.update((gpu.id, number) for number in op.semaphore_ids)
        if op.name in ("signal", "wait"):
            ends = [peer for channel in gpu.channels for peer in channel.connected_to]
            number = block.channels[0].channel_ids[op.channel_ids[0]]
            peer = ends[number]
            nth = ends[:number].count(peer)
            if op.name == "wait":
                return self.take(self.signals, [(peer, gpu.id, nth)])
            self.signals[gpu.id, peer, nth] += 1
        if op.name in ("copy", "put", "re"):
            value = sum(np.array(self.view(gpu, block, chunks)) for chunks in op.src_buff)
            self.view(gpu, block, op.dst_buff[0])[...] = value
        return True

    @staticmethod
    def take(counter, keys):
        if any(counter[key] < 1 for key in keys):
            return False
        counter.subtract(keys)
        return True

    def view(self, gpu, block, chunks):
        buffers, kind = self.memory[gpu.id], chunks.type
        if chunks.buffer_id is not None:
            remote = gpu.remote_buffers[block.remote_buffer_refs[0].remote_buffer_ids[chunks.buffer_id]]
            buffers, kind = self.memory[remote.rank], remote.type
        return buffers[kind][chunks.index : chunks.index + chunks.size]
