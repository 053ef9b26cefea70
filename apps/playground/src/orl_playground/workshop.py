"""Workshop: look up parts and prices, compute an order's price, and write down the total.

It must not know who plays it. It is the tool-rich environment: enums, bounded numbers, a nested list of objects and an
optional field in the schemas, and a `@terminal` answer. Amounts are whole cents; a seed makes price list and order.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from openreward.environments import TextBlock, ToolOutput, terminal, tool
from pydantic import BaseModel, Field

from orl_playground.seeded import SeededEnvironment, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openreward.environments import JSONObject

EXPRESS_CENTS = 500


class Part(StrEnum):
    """What the workshop sells."""

    BOLT = "bolt"
    GEAR = "gear"
    SPRING = "spring"
    BEARING = "bearing"
    VALVE = "valve"


class Delivery(StrEnum):
    """How an order leaves; express costs 500 cents more."""

    STANDARD = "standard"
    EXPRESS = "express"


class Line(BaseModel):
    """One line of an order."""

    part: Part
    quantity: int = Field(ge=1, le=99, description="how many pieces")


@dataclass(frozen=True)
class Order:
    """A price list, what is in stock, and what a customer wants."""

    prices: dict[Part, int]
    stock: dict[Part, int]
    lines: tuple[Line, ...]
    discount: int
    delivery: Delivery

    def total(self) -> int:
        """The total in cents of what can be delivered: a line is delivered up to the stock of its part."""
        delivered = [Line(part=line.part, quantity=self.available(line)) for line in self.lines if self.available(line)]
        return price(self.prices, delivered, self.discount, self.delivery)

    def available(self, line: Line) -> int:
        """How many pieces of a line the stock allows."""
        return min(line.quantity, self.stock[line.part])


def price(prices: dict[Part, int], lines: Sequence[Line], discount: int, delivery: Delivery) -> int:
    """The price of lines in cents: the discount (per cent, rounded down to a cent) is taken before delivery."""
    goods = sum(prices[line.part] * line.quantity for line in lines)
    return goods - goods * discount // 100 + (EXPRESS_CENTS if delivery is Delivery.EXPRESS else 0)


def order(seed: int) -> Order:
    """The order of a seed, always the same; at least one line can be delivered."""
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    prices = {part: rng.randrange(20, 2000, 5) for part in Part}
    stock = {part: rng.choice([0, rng.randint(1, 9), rng.randint(10, 99)]) for part in Part}
    wanted = rng.sample(list(Part), rng.randint(2, 3))
    stock[wanted[0]] = max(1, stock[wanted[0]])
    lines = tuple(Line(part=part, quantity=rng.randint(1, 20)) for part in wanted)
    return Order(prices, stock, lines, rng.choice([0, 5, 10, 20]), rng.choice(list(Delivery)))


class StockQuery(BaseModel):
    """Parts to look up."""

    parts: list[Part] = Field(min_length=1, max_length=5, description="the parts to look up")


class PriceQuery(BaseModel):
    """A quantity of one part."""

    part: Part
    quantity: int = Field(default=1, ge=1, le=99, description="pieces")


class Quote(BaseModel):
    """What to compute the price of."""

    lines: list[Line] = Field(min_length=1, max_length=5)
    discount: int = Field(default=0, ge=0, le=50, description="per cent, taken from the goods")
    delivery: Delivery = Delivery.STANDARD


class Answer(BaseModel):
    """The final answer."""

    text: str


class Workshop(SeededEnvironment):
    """Say what an order costs, given that a line is delivered only up to its part's stock.

    `check_stock` and `look_up_price` inform, `quote` computes (its arguments hold a list of objects, an enum and
    bounded numbers). There is no tool to submit: a plain message ends the episode, and its last whole number is taken
    as the total in cents, 1.0 if right and 0.0 otherwise.
    """

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.order = order(self.seed)

    async def get_prompt(self) -> list[TextBlock]:
        """The order, and what counts as an answer."""
        wanted = ", ".join(f"{line.quantity} x {line.part}" for line in self.order.lines)
        return [
            TextBlock(
                text=f"A customer orders {wanted}; discount {self.order.discount} %, {self.order.delivery} delivery. "
                "A line is delivered only up to what is in stock; leave out what is not. "
                "Answer in a plain message with the total in cents, the number last."
            )
        ]

    @tool
    async def check_stock(self, args: StockQuery) -> ToolOutput:
        """Say how many pieces of each part are in stock."""
        return told(", ".join(f"{part}: {self.order.stock[part]}" for part in args.parts))

    @tool
    async def look_up_price(self, args: PriceQuery) -> ToolOutput:
        """Say what a quantity of one part costs, in cents, without discount or delivery."""
        return told(f"{args.quantity} x {args.part}: {self.order.prices[args.part] * args.quantity}")

    @tool
    async def quote(self, args: Quote) -> ToolOutput:
        """Compute the price of lines in cents. It does not look at the stock."""
        return told(f"total: {price(self.order.prices, args.lines, args.discount, args.delivery)}")

    @terminal
    @tool
    async def answer(self, args: Answer) -> ToolOutput:
        """Give the total in cents; the last whole number of the message counts."""
        numbers = re.findall(r"\d+", args.text)
        right = bool(numbers) and int(numbers[-1][:12]) == self.order.total()
        reply = f"The total is {self.order.total()}."
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=float(right), finished=True)
