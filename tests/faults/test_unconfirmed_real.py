"""A loss that is not finite, as the training process tells it."""

from training_rig import Windows, training_on, trial

from loadtune.records.config import Recipe
from loadtune.records.measurement import TrialFailure


def test_a_window_says_that_the_loss_was_not_finite(tmp_path, in_thread):
    with training_on(tmp_path, "NanAtIndex") as training:
        windows = Windows(4)
        run = training.time_training(trial(batch_size=128), 0.1, windows)
        assert not isinstance(run, TrialFailure)
        assert windows[-1].loss_is_finite is False


def test_a_compute_only_rate_is_not_timed_with_a_loss_that_is_not_finite(tmp_path, in_thread):
    with training_on(tmp_path, "AllNan") as training:
        failure = training.time_compute(Recipe(), 8, 0.1)
        assert isinstance(failure, TrialFailure)
        assert failure.kind == "non_finite_loss"
