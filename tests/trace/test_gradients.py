"""Files of gradients."""

import pytest

from wirewise.errors import InputError
from wirewise.trace import read_gradient_trace


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tensors": []}', "no tensors"),
        ('{"tensors": [{"name": "a", "elements": 0, "gap_us": 1}]}', r"tensors\[0\].*0 elements"),
        ('{"tensors": [{"name": "a", "elements": 1, "gap_us": -1}]}', "finite time"),
        (
            '{"tensors": [{"name": "a", "elements": 1, "gap_us": 1}, {"name": "a", "elements": 1, "gap_us": 1}]}',
            "twice",
        ),
        ('{"tensors": [{"name": "a"}]}', "elements"),
        ("nothing", "malformed"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, text, words):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"(?s)trace\.json.*{words}"):
        read_gradient_trace(path)
