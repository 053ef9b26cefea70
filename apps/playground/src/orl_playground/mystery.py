"""Mystery: a miniature deduction after the country-house stories. Who did it, with what, and where?

It must not know who plays it. A seed makes a case whose evidence determines it: exactly one suspect has no alibi, one
weapon fits the wound, one room shows traces. Suspects may lie. The accusation ends the episode.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from openreward.environments import TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

from orl_playground.seeded import SeededEnvironment, told

if TYPE_CHECKING:
    from openreward.environments import JSONObject

SUSPECT_SHARE, WEAPON_SHARE, PLACE_SHARE = 0.5, 0.25, 0.25


class Suspect(StrEnum):
    """The people in the house."""

    ADA = "Ada"
    BRUNO = "Bruno"
    CLARA = "Clara"
    DORIAN = "Dorian"
    EDITH = "Edith"


class Weapon(StrEnum):
    """What was at hand."""

    CANDLESTICK = "candlestick"
    DAGGER = "dagger"
    ROPE = "rope"
    REVOLVER = "revolver"


class Room(StrEnum):
    """The rooms."""

    LIBRARY = "library"
    KITCHEN = "kitchen"
    CELLAR = "cellar"
    TERRACE = "terrace"


WOUNDS = {
    Weapon.CANDLESTICK: "a blow to the head",
    Weapon.DAGGER: "a narrow stab",
    Weapon.ROPE: "marks around the neck",
    Weapon.REVOLVER: "a small round hole",
}


@dataclass(frozen=True)
class Case:
    """A crime and what each question about it brings to light."""

    culprit: Suspect
    weapon: Weapon
    place: Room
    hour: int
    claims: dict[Suspect, Room]
    witnesses: dict[Suspect, Suspect]

    def interview(self, suspect: Suspect) -> str:
        """Return a suspect's claim; the culprit's claim is a lie, and nobody's is proof."""
        return f"{suspect}: At {self.hour} o'clock I was in the {self.claims[suspect]}. Ask who saw me there."

    def check_alibi(self, suspect: Suspect) -> str:
        """Return whether somebody saw the suspect where they claim to have been: always true."""
        if suspect is self.culprit:
            return f"Nobody saw {suspect} in the {self.claims[suspect]} at {self.hour} o'clock."
        return f"{self.witnesses[suspect]} saw {suspect} in the {self.claims[suspect]} at {self.hour} o'clock."

    def inspect(self, place: Room) -> str:
        """Return the sight of a room: the scene has the wound's traces, the other rooms show nothing."""
        if place is not self.place:
            return f"The {place} is in order."
        return f"In the {place} a chair lies on its side, and there are stains. The victim shows {WOUNDS[self.weapon]}."

    def score(self, suspect: Suspect, weapon: Weapon, place: Room) -> float:
        """The reward of an accusation: the sum of the shares that are right, at most 1.0."""
        return (
            SUSPECT_SHARE * (suspect is self.culprit)
            + WEAPON_SHARE * (weapon is self.weapon)
            + PLACE_SHARE * (place is self.place)
        )


def case(seed: int) -> Case:
    """The case of a seed, always the same."""
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    culprit, weapon, place = rng.choice(list(Suspect)), rng.choice(list(Weapon)), rng.choice(list(Room))
    elsewhere = [room for room in Room if room is not place]
    others = [suspect for suspect in Suspect if suspect is not culprit]
    # The innocent were together in pairs, away from the scene, and each saw the other.
    rng.shuffle(others)
    claims = {culprit: rng.choice(elsewhere)}
    witnesses: dict[Suspect, Suspect] = {}
    for one, other in ((others[0], others[1]), (others[2], others[3])):
        claims[one] = claims[other] = rng.choice(elsewhere)
        witnesses[one], witnesses[other] = other, one
    return Case(culprit, weapon, place, rng.randint(6, 11), claims, witnesses)


class Interview(BaseModel):
    """Whom to interview."""

    suspect: Suspect = Field(description="whom to ask")


class Inspect(BaseModel):
    """Where to look."""

    place: Room = Field(description="the room to look at")


class Alibi(BaseModel):
    """Whose alibi to check."""

    suspect: Suspect = Field(description="whose claim to check")


class Accusation(BaseModel):
    """Who did it, with what, and where."""

    suspect: Suspect
    weapon: Weapon
    place: Room


class Mystery(SeededEnvironment):
    """Find out who did it, with what, and where, and accuse.

    `interview` brings claims (the culprit lies), `check_alibi` brings the truth about a claim, `inspect_room` finds
    the scene and the wound. `accuse` ends the episode: half of the reward is for the suspect, a quarter each for
    weapon and place, so that a half-solved case is worth something.
    """

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.case = case(self.seed)

    async def get_prompt(self) -> list[TextBlock]:
        """The people, the weapons and the rooms."""
        return [
            TextBlock(
                text=f"A crime was committed at {self.case.hour} o'clock. "
                f"Suspects: {', '.join(Suspect)}. Weapons: {', '.join(Weapon)}. Rooms: {', '.join(Room)}. "
                "Exactly one suspect has no true alibi. Question, inspect, then accuse: once."
            )
        ]

    @tool
    async def interview(self, args: Interview) -> ToolOutput:
        """Ask a suspect where they were."""
        return told(self.case.interview(args.suspect))

    @tool
    async def check_alibi(self, args: Alibi) -> ToolOutput:
        """Find out whether somebody saw a suspect where they claim to have been."""
        return told(self.case.check_alibi(args.suspect))

    @tool
    async def inspect_room(self, args: Inspect) -> ToolOutput:
        """Look for evidence in a room."""
        return told(self.case.inspect(args.place))

    @tool(exclusive=True)
    async def accuse(self, args: Accusation) -> ToolOutput:
        """Accuse a suspect of having used a weapon in a room. This ends the case."""
        truth = f"It was {self.case.culprit} with the {self.case.weapon} in the {self.case.place}."
        reward = self.case.score(args.suspect, args.weapon, args.place)
        return ToolOutput(blocks=[TextBlock(text=truth)], reward=reward, finished=True)
