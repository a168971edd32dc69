"""Parts of the training that need no process: the queue's depth, the protocol, memory's readers, the line."""

import threading
from multiprocessing import Pipe

import pytest

from loadtune.records.measurement import Window
from loadtune.training.protocol import Line, Phase, Stop


def test_the_line_says_what_is_done_and_hears_a_stop():
    controller, training = Pipe()
    line = Line(training)
    line.enter("training")
    line.pulse()  # too soon after the phase to be said
    assert controller.recv() == Phase("training")
    assert not controller.poll(0)
    controller.send(Stop())
    line = Line(training)
    assert line.stop_asked()
    assert not line.stop_asked()


@pytest.mark.parametrize(("seconds", "hears"), [(100.0, True), (0.4, False)])
def test_after_a_long_step_the_line_waits_a_moment_for_the_answer(seconds, hears):
    """Else the step that begins meanwhile is in vain. After a short one it does not wait."""
    controller, training = Pipe()
    line = Line(training)
    line.window(Window(start_s=0.0, seconds=seconds, num_steps=1, num_samples=1))
    answer = threading.Timer(0.05, controller.send, [Stop()])
    answer.start()
    assert line.stop_asked() is hears
    answer.join()
