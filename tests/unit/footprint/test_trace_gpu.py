"""What the tracer shows beside tensors where there is a GPU: the allocator's counters."""

from loadtune.footprint.trace.visits import Birth, CudaReading, Ledger


class FakeMeter:
    """A GPU whose counters the test sets."""

    device: str | None = "cuda:0"

    def __init__(self) -> None:
        self.reading = CudaReading(1000, 1000)

    def read(self) -> CudaReading | None:
        return self.reading

    def restart_peak(self) -> None:
        self.reading = CudaReading(self.reading.allocated_bytes, self.reading.allocated_bytes)


def test_on_a_gpu_the_allocator_counts_and_what_no_tensor_explains_is_said() -> None:
    meter = FakeMeter()
    ledger = Ledger(meter)
    ledger.start()
    visit = ledger.begin("train.py", 3, "step")
    ledger.born(Birth((100,), "float32", 400, "cuda:0"))
    meter.reading = CudaReading(1000 + 512 + 2048, 9000)
    ledger.pause()
    ledger.end(visit)
    following = ledger.begin("train.py", 4, "step")
    ledger.pause()
    ledger.end(following)
    first, second = ledger.rows.values()
    assert (first.visit.cuda_change, first.visit.cuda_peak, first.cuda.unattributed_bytes) == (2560, 9000, 2048)
    assert (second.visit.cuda_change, second.visit.cuda_peak) == (0, 3560)
    assert first.visit.change == 0


def test_on_a_gpu_the_peak_of_a_line_is_the_largest_of_its_visits() -> None:
    meter = FakeMeter()
    ledger = Ledger(meter)
    ledger.start()
    for _ in range(200):
        visit = ledger.begin("train.py", 3, "step")
        grown = meter.reading.allocated_bytes + 512
        meter.reading = CudaReading(grown, grown + 4096)
        ledger.pause()
        ledger.end(visit)
    (row,) = ledger.rows.values()
    line = row.record()
    assert line.cuda is not None
    assert (line.num_visits, line.cuda.change_bytes) == (200, 512)
    assert (line.cuda.in_use_bytes, line.cuda.last_in_use_bytes) == (1512, 1000 + 200 * 512)
    assert line.cuda.peak_bytes == 1000 + 200 * 512 + 4096
