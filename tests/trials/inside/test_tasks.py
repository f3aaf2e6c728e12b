"""Tasks that an environment variable tells ranks."""

from wirewise.profile.launch import FOLLOW_SPAWNED
from wirewise.trials.inside import Measure, Record, TryPlans, environment


def test_windows_take_turns():
    task = TryPlans(file="tried.json", plans=dict.fromkeys("abc", "plan.json"), windows=3)
    assert "".join(task.order) == "abccbaabc"


def test_only_a_recording_follows_processes_that_the_script_starts():
    one, other = Record(folder="run"), Measure(file="measured.json", codecs=())
    assert FOLLOW_SPAWNED in environment(one) and FOLLOW_SPAWNED not in environment(one, other)
