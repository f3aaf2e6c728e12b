"""The script about gradient codecs compares operations that do the same job."""

import sys

import pytest
import torch
from tests.benchmarks.test_benchmarks import load
from tests.harness.tiers import spread


@pytest.fixture
def run(monkeypatch):
    torch.manual_seed(0)
    return load(monkeypatch, "run", "gradient_codecs")


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(["fp16", "bf16", "topk", "efsign", "signsgd", "signum", "onebit"], 3))
def test_torch_operations_send_what_the_codec_sends(run, name):
    job = run.Job(name, 1 << 12)
    for _ in range(3):
        job.torch_encode()
        job.torch_decode()
        expected = job.out.clone()
        job.encode()
        job.decode()
        torch.testing.assert_close(job.out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "off"), [("int8", 0.01), ("int4", 0.05)])
def test_torch_operations_send_about_what_the_codec_sends(run, name, off):
    """Steps of the codec's own blocks are rounded; the error of the code itself is 0.007 and 0.13."""
    job = run.Job(name, 1 << 16)
    job.torch_encode()
    job.torch_decode()
    expected = job.out.clone()
    job.encode()
    job.decode()
    assert (job.out - expected).norm() <= off * expected.norm()


@pytest.mark.slow
def test_sampled_thresholds_send_the_largest_values_as_they_are(run):
    job = run.Job("dgc", 1 << 16)
    job.torch_encode()
    job.torch_decode()
    expected = job.out.clone()
    job.encode()
    job.decode()
    wanted, both = run.RATIO * len(expected), (expected != 0) & (job.out != 0)
    for sent in (expected, job.out):
        count = int((sent != 0).sum())
        assert 0.7 * wanted <= count <= 1.3 * wanted
        # One threshold contains the other.
        assert sent[sent != 0].abs().min() >= 0.8 * expected[both].abs().min()
    assert int(both.sum()) == min(int((sent != 0).sum()) for sent in (expected, job.out))
    assert torch.equal(job.out[both], expected[both])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_low_rank_operations_send_as_much(run):
    job = run.Job("powersgd", 1 << 12)
    job.gradient = torch.outer(torch.randn(64), torch.randn(64)).flatten()
    for way in ("torch_", ""):
        getattr(job, f"{way}encode")()
        getattr(job, f"{way}decode")()
        torch.testing.assert_close(job.out, job.gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qsgd", "terngrad"])
def test_random_torch_operations_send_the_same_levels(run, name):
    job = run.Job(name, 1 << 12)
    job.torch_encode()
    job.torch_decode()
    levels = job.out.abs().unique()
    job.encode()
    job.decode()
    # Draws differ, so that the largest may be a level apart.
    torch.testing.assert_close(job.out.abs().max(), levels.max(), rtol=0.3, atol=0.0)
    torch.testing.assert_close(job.out.abs().mean(), job.gradient.abs().mean(), rtol=0.2, atol=0.0)


@pytest.mark.slow
def test_the_page_has_a_row_for_each_way(monkeypatch, run, tmp_path):
    out = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "copy,efsign,topk,int8", "--out", str(out)])
    threads = torch.get_num_threads()
    run.main()
    torch.set_num_threads(threads)
    page = out.read_text()
    assert all(f"| {name} | {way} |" in page for name in ("efsign", "topk") for way in ("encode", "decode"))
    assert "| copy | check |" in page and "| int8 | encode, checked |" in page
    assert "| efsign | encode, checked |" not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgc", "int8", "signum", "bf16"])
def test_checked_encodes_do_the_same_job(run, name):
    job = run.Job(name, 1 << 12)
    found = []
    for encode in (job.encode, job.encode_checked):
        encode()
        found.append(job.buffer.clone())
    assert torch.equal(*found) and torch.equal(job.memory, job.own_memory)
