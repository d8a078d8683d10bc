"""The caching allocator: classes, reuse, books, the end of memory, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError, DeviceError, OutOfMemory
from nbxtensor.memory.pool import Pool


class Memory:
    """A device's memory of ``capacity`` bytes."""

    def __init__(self, capacity: int = 1 << 40):
        self.capacity, self.blocks, self.next, self.calls = capacity, dict[int, int](), 256, 0

    def allocate(self, nbytes: int) -> int:
        self.calls += 1
        if sum(self.blocks.values()) + nbytes > self.capacity:
            raise OutOfMemory(nbytes, 0, self.capacity, 0)
        address, self.next = self.next, self.next + (nbytes + 255) // 256 * 256
        self.blocks[address] = nbytes
        return address

    def free(self, address: int) -> None:
        if address not in self.blocks:
            raise DeviceError(f"{address} is not allocated")
        del self.blocks[address]

    def info(self) -> tuple[int, int]:
        return self.capacity - sum(self.blocks.values()), self.capacity


def make(capacity: int = 1 << 40) -> tuple[Memory, Pool]:
    memory = Memory(capacity)
    return memory, Pool(memory.allocate, memory.free, memory.info)


def take(pool: Pool, nbytes: int) -> int:
    bin = pool.bin(nbytes)
    return bin.pop() if bin else pool.grow(bin)


@given(st.integers(0, 1 << 45))
def test_a_class_holds_the_request_and_wastes_little(nbytes: int) -> None:
    _, pool = make()
    size = pool.bin(nbytes).size
    assert size >= max(nbytes, 1) and size % 256 == 0
    assert size - nbytes <= max(512, 1 << 20)
    assert pool.bin(size) is pool.bin(nbytes)


@pytest.mark.parametrize("nbytes", [-1, 1 << 63])
def test_impossible_sizes_are_refused(nbytes: int) -> None:
    with pytest.raises(ArgumentError, match="nbytes"):
        make()[1].bin(nbytes)


def test_a_freed_block_serves_again_without_the_driver() -> None:
    memory, pool = make()
    first = take(pool, 1000)
    pool.bin(1000).append(first)
    assert take(pool, 900) == first and memory.calls == 1


def test_the_books_add_up() -> None:
    _, pool = make()
    a, b = take(pool, 1000), take(pool, 3 << 20)
    assert pool.statistics() == (1024 + (3 << 20), 0, 1024 + (3 << 20), 2)
    pool.bin(1000).append(a)
    assert pool.statistics()[1:3] == (1024, 3 << 20)
    assert pool.empty_cache() == 1024 and pool.empty_cache() == 0
    pool.bin(3 << 20).append(b)
    assert pool.empty_cache() == 3 << 20 and pool.statistics()[:3] == (0, 0, 0)


def test_cached_blocks_make_room() -> None:
    memory, pool = make(4 << 20)
    pool.bin(3 << 20).append(take(pool, 3 << 20))
    assert take(pool, 2 << 20) in memory.blocks
    assert pool.statistics().cached == 0


def test_the_end_of_memory_has_its_figures() -> None:
    _, pool = make(4 << 20)
    kept = take(pool, 3 << 20)
    with pytest.raises(OutOfMemory) as caught:
        take(pool, 2 << 20)
    error = caught.value
    assert (error.requested, error.free, error.total, error.live, error.cached) == (
        2 << 20,
        1 << 20,
        4 << 20,
        3 << 20,
        0,
    )
    pool.bin(3 << 20).append(kept)
    assert take(pool, 2 << 20)


def test_a_block_whose_free_fails_is_not_lost() -> None:
    memory, pool = make()
    address = take(pool, 100)
    pool.bin(100).append(address)
    taken = memory.blocks.pop(address)
    with pytest.raises(DeviceError):
        pool.empty_cache()
    memory.blocks[address] = taken
    assert pool.empty_cache() == 512


def test_threads_never_share_a_block() -> None:
    memory, pool = make()

    def work(seed: int) -> list[int]:
        kept = []
        for i in range(500):
            nbytes = 1 + (seed * 7919 + i * 104729) % 5000
            address = take(pool, nbytes)
            if i % 3:
                pool.bin(nbytes).append(address)
            else:
                kept.append(address)
        return kept

    with ThreadPoolExecutor(8) as threads:
        kept = [address for part in threads.map(work, range(8)) for address in part]
    assert len(set(kept)) == len(kept) and set(kept) <= set(memory.blocks)
    stats = pool.statistics()
    assert stats.reserved == sum(memory.blocks.values()) and stats.live == stats.reserved - stats.cached
