import numpy as np
import pytest

from wirewise.errors import GraphError
from wirewise.graph.debian import build_debian

TEXT = """\
Package: editor
Section: editors
Depends: libtext (>= 1.2), toolkit:any | libtext,
 fonts
Recommends: absent, editor
Description: fast text editor
 A long description with unheard words.

Package: libtext
Section: contrib/libs
Pre-Depends: toolkit
Description-en: shared text library

Package: toolkit
Section: libs
Enhances: editor
Suggests: fonts
Description: shared widget library

Package: fonts
Section: fonts
Description: fonts of letters

Package: libtext
Section: oldlibs
Depends: fonts
Description: an older version

Package: without-section
Depends: fonts
"""


def packages(**knobs):
    return build_debian(TEXT.splitlines(keepends=True), **knobs)


def test_relations_become_edges_from_dependent_to_dependency():
    editor, libtext, toolkit, fonts = range(4)
    data = packages()
    assert data.directed and data.num_nodes == 4
    assert sorted(map(tuple, data.edge_index.T.tolist())) == sorted(
        [
            (editor, libtext),
            (editor, toolkit),
            (editor, fonts),
            (libtext, toolkit),
            (toolkit, editor),
            (toolkit, fonts),
        ]
    )


def test_sections_become_classes_without_their_area():
    data = packages()
    assert data.class_names == ("editors", "fonts", "libs")
    assert data.y.tolist() == [0, 2, 2, 1]


def test_words_of_the_short_description_become_features():
    data = packages()
    # editor, fast, fonts, letters, library, shared, text, widget: short words ("of") are left out.
    assert data.num_features == 8 and np.diff(data.x.indptr).tolist() == [3, 3, 3, 2]
    assert packages(num_words=2).num_features == 2


def test_the_most_telling_words_are_kept():
    stanzas = []
    for i in range(400):
        kind = "games" if i % 2 else "science"
        common, noise = "package", "apple" if i % 3 else "pear"
        stanzas.append(f"Package: p{i}\nSection: {kind}\nDescription: {common} {noise} {kind[:3]}word\n\n")
    data = build_debian("".join(stanzas).splitlines(), num_words=2)
    dense = data.x.to_dense()
    assert np.array_equal(dense.sum(axis=1), np.ones(400)), "gamword or sciword, one in each description"
    assert len({(label, row.argmax()) for label, row in zip(data.y.tolist(), dense, strict=True)}) == 2


def test_the_split_depends_on_the_name_only():
    stanzas = [f"Package: p{i}\nSection: a\nDescription: text\n\n" for i in range(500)]
    forward = build_debian("".join(stanzas).splitlines())
    backward = build_debian("".join(stanzas[::-1]).splitlines())
    assert np.array_equal(forward.split, backward.split[::-1])
    assert np.bincount(forward.split) / 500 == pytest.approx([0.6, 0.2, 0.2], abs=0.06)


def test_other_text_is_refused():
    with pytest.raises(
        GraphError, match="no stanza with Package and Section; expected the output of apt-cache"
    ):
        build_debian(["hello", "", "Package: alone"])
