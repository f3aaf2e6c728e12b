"""Build the package graph from the text of `apt-cache dumpavail`.

A node is a package, an edge leads from a package to one that it depends on, recommends, suggests or enhances, the
class is the package's section, and the features are the most informative words of the short description.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.graph.data import TEST, TRAIN, VALIDATION, GraphData, SparseRows

__all__ = ["build_debian"]

_RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances")
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)")
_WORD = re.compile(r"[a-z][a-z0-9+-]{2,}")
_SEPARATOR = re.compile(r"[,|]")


def build_debian(lines: Iterable[str], *, num_words: int = 1000, name: str = "debian") -> GraphData:
    """Build the checked directed package graph of a package list.

    A package that is listed more than once counts once, as first listed; relations to packages that are
    not listed are dropped. The split, 60 % train, 20 % validation, 20 % test, depends on a package's name
    only, so it stays the same as the archive grows. Words are chosen by their mutual information with the
    section over the training packages.

    Args:
        lines: Lines of the text, as `apt-cache dumpavail` prints it.
        num_words: Maximum number of features.
        name: Name of the graph.

    Raises:
        GraphError: The text holds no package with a section.
    """
    packages: dict[str, dict[str, str]] = {}
    for stanza in _stanzas(lines):
        if "Package" in stanza and "Section" in stanza:
            packages.setdefault(stanza["Package"], stanza)
    if not packages:
        raise GraphError(
            "the text holds no stanza with Package and Section; expected the output of apt-cache dumpavail"
        )
    number = {package: i for i, package in enumerate(packages)}
    sections = [stanza["Section"].rpartition("/")[2] for stanza in packages.values()]
    class_names, y = np.unique(np.array(sections), return_inverse=True)
    split = np.array([_split_of(package) for package in packages], dtype=np.uint8)
    return GraphData(
        edge_index=_relations(packages, number),
        x=_word_features([s.get("Description", "") for s in packages.values()], y, split, num_words),
        y=y.astype(np.int64),
        split=split,
        num_classes=len(class_names),
        class_names=tuple(str(c) for c in class_names),
        directed=True,
        name=name,
    ).validate()


def _stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Fields of each stanza; continuation lines are joined, except the long description."""
    fields: dict[str, str] = {}
    last = ""
    for line in lines:
        line = line.rstrip("\r\n")
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if last in _RELATIONS:
                fields[last] += " " + line.strip()
        elif match := _FIELD.fullmatch(line):
            last = match[1] if match[1] != "Description-en" else "Description"
            fields[last] = match[2]
    if fields:
        yield fields


def _relations(packages: dict[str, dict[str, str]], number: dict[str, int]) -> NDArray[np.int32]:
    edges = set()
    for package, stanza in packages.items():
        for relation in _RELATIONS:
            for item in _SEPARATOR.split(stanza.get(relation, "")):
                # "libc6:any (>= 2.34)" names libc6.
                target = number.get(item.split("(")[0].strip().partition(":")[0], -1)
                if target >= 0 and target != number[package]:
                    edges.add((number[package], target))
    return np.array(sorted(edges), dtype=np.int32).reshape(-1, 2).T.copy()


def _split_of(package: str) -> int:
    draw = int.from_bytes(hashlib.blake2b(package.encode(), digest_size=8).digest(), "big") / 2**64
    return TRAIN if draw < 0.6 else VALIDATION if draw < 0.8 else TEST


def _word_features(
    descriptions: list[str], y: NDArray[np.int64], split: NDArray[np.uint8], num_words: int
) -> SparseRows:
    words = [sorted(set(_WORD.findall(text.lower()))) for text in descriptions]
    column: dict[str, int] = {}
    indices = np.array([column.setdefault(w, len(column)) for row in words for w in row], dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in words])]).astype(np.int64)
    if not column:
        return SparseRows(indptr=indptr, indices=indices.astype(np.int32), data=None, num_columns=1)
    has = sp.csr_matrix((np.ones(len(indices)), indices, indptr), shape=(len(words), len(column)))
    train = split == TRAIN
    told = _mutual_information(has[train], y[train])
    # Ties are broken by the word itself, so that the order of the list does not matter.
    names = sorted(column, key=lambda w: (-told[column[w]], w))[:num_words]
    chosen = has[:, [column[w] for w in sorted(names)]].tocsr()
    chosen.sort_indices()
    return SparseRows(
        indptr=chosen.indptr.astype(np.int64),
        indices=chosen.indices.astype(np.int32),
        data=None,
        num_columns=len(names),
    )


def _mutual_information(has: sp.csr_matrix, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Nats that the presence of each word tells about the class, [words]."""
    packages = max(1, has.shape[0])
    member = sp.csr_matrix(
        (np.ones(len(y)), (y, np.arange(len(y)))), shape=(int(y.max(initial=0)) + 1, len(y))
    )
    p_class = np.asarray(member.sum(axis=1)) / packages
    p_word = np.asarray(has.sum(axis=0)) / packages
    both = np.asarray((member @ has).todense()) / packages
    without = p_class - both
    with np.errstate(divide="ignore", invalid="ignore"):
        present = both * np.log(both / (p_class * p_word))
        absent = without * np.log(without / (p_class * (1 - p_word)))
    # 0 log 0 counts as 0; NumPy makes it NaN.
    return np.asarray((np.nan_to_num(present) + np.nan_to_num(absent)).sum(axis=0))
