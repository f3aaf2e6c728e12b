"""Tasks that an environment variable tells ranks."""

from wirewise.trials.inside import Try


def test_windows_take_turns():
    task = Try(file="tried.json", plans=dict.fromkeys("abc", "plan.json"), windows=3)
    assert "".join(task.order) == "abccbaabc"
