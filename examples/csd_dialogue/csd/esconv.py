"""Adapter for ESConv (S. Liu et al.: Towards Emotional Support Dialog Systems, ACL 2021), a file of the user's own.

The data are for academic use and do not come with wirewise. The seeker becomes the elder and the supporter the
therapist. A dialogue has one emotion, which all turns of the seeker get; there are no principles and no words.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from csd.schema import STRATEGIES, Dialogue, Turn
from wirewise.errors import InputError

__all__ = ["read_esconv"]

_EMOTIONS = {
    "anger": "Anger",
    **dict.fromkeys(("anxiety", "fear", "nervousness"), "Fear"),
    **dict.fromkeys(("depression", "sadness", "shame", "guilt", "pain"), "Sadness"),
    **dict.fromkeys(("disgust", "jealousy"), "Disgust"),
}
_STRATEGIES = {name.lower(): name for name in STRATEGIES}


class _Said(msgspec.Struct):
    speaker: str
    content: str
    annotation: dict[str, object] = {}


class _Conversation(msgspec.Struct):
    emotion_type: str
    problem_type: str
    dialog: list[_Said]


def read_esconv(path: str | os.PathLike[str]) -> list[Dialogue]:
    """Read ESConv.json.

    Raises:
        InputError: No such file, or another form; the message names the place.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=list[_Conversation])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: {error}; expected the list of conversations of ESConv.json") from error
    return [
        Dialogue(f"esconv-{number}", one.problem_type, tuple(_turn(said, one, number, path) for said in one.dialog))
        for number, one in enumerate(found)
    ]  # fmt: skip


def _turn(said: _Said, of: _Conversation, number: int, path: str | os.PathLike[str]) -> Turn:
    text = " ".join(said.content.split())
    if said.speaker == "seeker":
        return Turn("elder", text, emotion=_EMOTIONS.get(of.emotion_type.lower(), "None"))
    if said.speaker == "supporter":
        named = str(said.annotation.get("strategy", "None")).lower()
        return Turn("therapist", text, strategy=_STRATEGIES.get(named, "Others"))
    raise InputError(
        f"{path}: conversation {number} has a speaker {said.speaker!r}; expected seeker or supporter"
    )
