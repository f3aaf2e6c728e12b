"""Modules of recorded gradients."""

import pytest
from benchmarks.fusion_planners.recorded import read_gradients

from wirewise.errors import InputError


def test_files_of_gradients_are_checked(tmp_path):
    good = tmp_path / "good.json"
    good.write_text(
        '{"tensors": [{"name": "b", "elements": 2, "gap_us": 5}, {"name": "a", "elements": 1, "gap_us": 3}]}'
    )
    last, first = read_gradients(good)
    assert (first.name, first.gradient_bytes, first.backward_s) == ("b", 8.0, pytest.approx(5e-6))
    assert last.forward_s == pytest.approx(1.5e-6)
    bad = tmp_path / "bad.json"
    bad.write_text('{"tensors": [{"name": "b"}]}')
    for path in (bad, tmp_path / "absent.json"):
        with pytest.raises(InputError, match=f"cannot read gradients from .*{path.name}"):
            read_gradients(path)
