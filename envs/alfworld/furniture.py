"""Which rooms there are, what stands in them and what may lie where: tables, after ALFRED's scenes.

The names and what fits where are those of ALFWorld's constants; how often a piece of furniture occurs
follows its 120 floor plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsdk.envs.alfworld.games import CLEAN, COOL, HEAT, LOOK, PICK, TWO

_TABLE_TOP = """
    AlarmClock Apple Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup DishSponge
    Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan Pen Pencil
    PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle
    Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle
"""
_SEAT = """
    BasketBall Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl
"""
_CHEST = """
    AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain
    Laptop Mug Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox
    ToiletPaper Vase Watch WateringCan WineBottle
"""
_BALLS = "BaseballBat BasketBall"

FITS: Mapping[str, tuple[str, ...]] = {
    receptacle: tuple(sorted(things.split()))
    for receptacle, things in {
        "ArmChair": _SEAT,
        "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
        "Bed": "BaseballBat BasketBall Book CellPhone Laptop Newspaper Pillow TennisRacket",
        "Cabinet": """
            Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan
            PepperShaker Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
            Vase WateringCan WineBottle
        """,
        "Cart": """
            Candle Cloth DishSponge HandTowel Mug Plunger SoapBar SoapBottle SprayBottle Statue TissueBox
            ToiletPaper Vase
        """,
        "CoffeeMachine": "Mug",
        "CoffeeTable": _TABLE_TOP + _BALLS,
        "CounterTop": _TABLE_TOP + _BALLS,
        "Desk": _CHEST + "SoapBottle",
        "DiningTable": _TABLE_TOP + _BALLS,
        "Drawer": """
            Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife
            Ladle Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon
            SprayBottle TissueBox ToiletPaper Watch WateringCan
        """,
        "Dresser": _CHEST,
        "Fridge": """
            Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle
        """,
        "GarbageCan": """
            Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper Pen Pencil Potato SoapBar
            SoapBottle SprayBottle TissueBox ToiletPaper Tomato WineBottle
        """,
        "HandTowelHolder": "HandTowel",
        "LaundryHamper": "Cloth",
        "Microwave": "Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
        "Ottoman": _SEAT,
        "Safe": "CD CellPhone CreditCard KeyChain Statue Vase Watch",
        "Shelf": """
            AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel
            Kettle KeyChain Mug Newspaper Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar
            SoapBottle SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan WineBottle
        """,
        "SideTable": _TABLE_TOP + _BALLS,
        "SinkBasin": """
            Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle
            Lettuce Mug Pan Plate Pot Potato SoapBar Spatula Spoon Tomato
        """,
        "Sofa": _SEAT,
        "StoveBurner": "Kettle Pan Pot",
        "TVStand": "TissueBox",
        "Toaster": "",
        "Toilet": """
            Candle Cloth DishSponge HandTowel Newspaper SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
        """,
        "ToiletPaperHanger": "ToiletPaper",
        "TowelHolder": "Towel",
    }.items()
}
"""By receptacle type, the objects that may be put there."""

ABLE: Mapping[str, frozenset[str]] = {
    predicate: frozenset(things.split())
    for predicate, things in {
        "cleanable": """
            Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot
            Potato SoapBar Spatula Spoon Tomato
        """,
        "heatable": "Apple Bread Cup Egg Mug Plate Potato Tomato",
        "coolable": "Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
        "toggleable": "DeskLamp FloorLamp",
        "sliceable": "Apple Bread Egg Lettuce Potato Tomato",
    }.items()
}
"""By predicate of the domain, the types it holds for."""

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
HOLLOW = frozenset({"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"})
"""Objects that things could be put into: `isReceptacleObject`."""
LAMPS = ("DeskLamp", "FloorLamp")
LAMP_STANDS = ("Desk", "SideTable", "Dresser", "Shelf", "DiningTable", "CoffeeTable", "TVStand")

TREATMENT: Mapping[str, tuple[str, str]] = {
    CLEAN: ("cleanable", "SinkBasin"),
    HEAT: ("heatable", "Microwave"),
    COOL: ("coolable", "Fridge"),
}
"""By task type, what the object must be, and the appliance that does it."""


@dataclass(frozen=True, slots=True)
class Furniture:
    """How often a type of receptacle occurs in a room."""

    probability: float
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One kind of room."""

    scenes: tuple[int, int]
    """First and last of ALFRED's scene numbers of this kind."""
    task_types: frozenset[str]
    furniture: Mapping[str, Furniture]
    common: tuple[str, ...]
    """Objects that may be in every such room."""
    rare: tuple[str, ...]
    fixtures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Objects that cannot be picked up, and what they stand on."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ROOMS: Mapping[str, Room] = {
    "Kitchen": Room(
        scenes=(1, 30),
        task_types=frozenset({PICK, CLEAN, HEAT, COOL, TWO}),
        furniture={
            "Cabinet": Furniture(1, 3, 10),
            "CounterTop": Furniture(1, 1, 3),
            "Drawer": Furniture(0.95, 2, 6),
            "Fridge": Furniture(1, 1, 1),
            "Microwave": Furniture(1, 1, 1),
            "SinkBasin": Furniture(1, 1, 1),
            "StoveBurner": Furniture(1, 2, 4),
            "GarbageCan": Furniture(1, 1, 1),
            "CoffeeMachine": Furniture(1, 1, 1),
            "Toaster": Furniture(1, 1, 1),
            "DiningTable": Furniture(0.5, 1, 2),
            "Shelf": Furniture(0.2, 2, 3),
            "SideTable": Furniture(0.1, 1, 1),
        },
        common=_words(
            """
            Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Knife Lettuce Mug Pan PepperShaker
            Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato
            """
        ),
        rare=_words(
            """
            Kettle WineBottle Ladle Glassbottle Vase Statue CellPhone CreditCard Book SprayBottle Pen
            Pencil
            """
        ),
        fixtures={"HousePlant": ("CounterTop", "DiningTable")},
    ),
    "LivingRoom": Room(
        scenes=(201, 230),
        task_types=frozenset({PICK, LOOK, TWO}),
        furniture={
            "Sofa": Furniture(1, 1, 2),
            "ArmChair": Furniture(0.9, 1, 2),
            "CoffeeTable": Furniture(0.85, 1, 2),
            "SideTable": Furniture(0.8, 1, 3),
            "Drawer": Furniture(0.8, 2, 6),
            "GarbageCan": Furniture(1, 1, 1),
            "DiningTable": Furniture(0.45, 1, 1),
            "TVStand": Furniture(0.4, 1, 1),
            "Shelf": Furniture(0.4, 2, 6),
            "Dresser": Furniture(0.3, 1, 1),
            "Ottoman": Furniture(0.13, 1, 1),
            "Cabinet": Furniture(0.15, 2, 4),
            "Safe": Furniture(0.1, 1, 1),
        },
        common=_words("Box CreditCard KeyChain Laptop Pillow RemoteControl Statue Newspaper Vase Watch"),
        rare=_words("WateringCan TissueBox Book CellPhone Plate Pen Pencil Bowl Candle"),
        fixtures={
            "HousePlant": ("SideTable", "DiningTable", "CoffeeTable"),
            "Television": ("TVStand", "Dresser"),
        },
    ),
    "Bedroom": Room(
        scenes=(301, 330),
        task_types=frozenset({PICK, LOOK, TWO}),
        furniture={
            "Bed": Furniture(1, 1, 1),
            "Drawer": Furniture(1, 2, 6),
            "Shelf": Furniture(0.65, 2, 5),
            "Desk": Furniture(0.65, 1, 2),
            "SideTable": Furniture(0.65, 1, 2),
            "Dresser": Furniture(0.5, 1, 1),
            "GarbageCan": Furniture(1, 1, 1),
            "LaundryHamper": Furniture(0.25, 1, 1),
            "ArmChair": Furniture(0.2, 1, 1),
            "Safe": Furniture(0.2, 1, 1),
            "Cabinet": Furniture(0.15, 1, 3),
            "DiningTable": Furniture(0.15, 1, 1),
        },
        common=_words("AlarmClock Book CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil Pillow"),
        rare=_words("Bowl BaseballBat BasketBall TennisRacket Box Cloth Statue TissueBox Vase"),
        fixtures={"HousePlant": ("Dresser", "SideTable")},
    ),
    "Bathroom": Room(
        scenes=(401, 430),
        task_types=frozenset({PICK, CLEAN, TWO}),
        furniture={
            "Toilet": Furniture(1, 1, 1),
            "SinkBasin": Furniture(1, 1, 2),
            "GarbageCan": Furniture(1, 1, 1),
            "TowelHolder": Furniture(1, 1, 2),
            "HandTowelHolder": Furniture(1, 1, 2),
            "ToiletPaperHanger": Furniture(1, 1, 1),
            "CounterTop": Furniture(0.8, 1, 1),
            "BathtubBasin": Furniture(0.6, 1, 1),
            "Cabinet": Furniture(0.6, 2, 4),
            "Drawer": Furniture(0.5, 2, 5),
            "Shelf": Furniture(0.25, 1, 3),
            "Cart": Furniture(0.1, 1, 1),
            "SideTable": Furniture(0.1, 1, 1),
        },
        common=_words("Candle Cloth HandTowel SoapBar SoapBottle SprayBottle ToiletPaper Towel"),
        rare=_words("TissueBox DishSponge Plunger"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How full a household is."""

    furniture_share: float
    """Of the numbers in `Room.furniture`."""
    most_alike: int
    """Objects of one type, at most."""
    num_objects: tuple[int, int]


SIZES: Mapping[str, Size] = {
    "small": Size(furniture_share=0.45, most_alike=1, num_objects=(8, 14)),
    "medium": Size(furniture_share=0.75, most_alike=2, num_objects=(16, 28)),
    "large": Size(furniture_share=1.0, most_alike=3, num_objects=(30, 55)),
}
