"""The words of the generated catalogue. All are made for it; none come from a shop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product."""

    query: str
    path: str
    noun: str
    """As titles have it."""
    options: tuple[str, ...]
    """Names of `OPTIONS`."""


ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "fashion": (
        *(
            "machine wash",
            "hand wash",
            "long sleeve",
            "slim fit",
            "relaxed fit",
            "elastic waist",
            "rubber sole",
        ),
        *(
            "arch support",
            "memory foam",
            "high waist",
            "quick drying",
            "tummy control",
            "faux fur",
            "steel toe",
        ),
        *("button closure", "drawstring closure", "moisture wicking", "everyday wear"),
    ),
    "beauty": (
        *(
            "cruelty free",
            "paraben free",
            "sulfate free",
            "long lasting",
            "dry skin",
            "sensitive skin",
            "tea tree",
        ),
        *(
            "essential oils",
            "natural ingredients",
            "hair growth",
            "fresh breath",
            "anti aging",
            "dark circles",
        ),
        *("easy carry", "travel size", "nail polish", "argan oil", "alcohol free"),
    ),
    "electronics": (
        *(
            "fast charging",
            "wireless charging",
            "noise cancelling",
            "high definition",
            "plug play",
            "easy install",
        ),
        *(
            "carrying case",
            "quad core",
            "stereo sound",
            "hands free",
            "usb port",
            "heavy duty",
            "gold plated",
        ),
        *("high speed", "water resistant", "aluminum alloy", "tempered glass", "dual band"),
    ),
    "garden": (
        *(
            "easy assemble",
            "easy clean",
            "solid wood",
            "space saving",
            "storage space",
            "living room",
            "king size",
        ),
        *("dining room", "machine washable", "eco friendly", "wood frame", "high density", "mid century"),
        *("super soft", "faux leather", "lead free", "metal legs", "wall mounted"),
    ),
    "grocery": (
        *("gluten free", "sugar free", "non gmo", "low carb", "plant based", "dairy free", "keto friendly"),
        *(
            "soy free",
            "individually wrapped",
            "artificial flavors",
            "usda organic",
            "shelf stable",
            "low sodium",
        ),
        *("nut free", "ready eat", "natural flavors", "high protein", "fat free"),
    ),
}

KINDS: dict[str, tuple[Kind, ...]] = {
    "fashion": (
        Kind("women's sandals", "Clothing › Women › Shoes › Sandals", "Sandals", ("size/shoe", "color")),
        Kind("men's loafers", "Clothing › Men › Shoes › Loafers", "Loafers", ("size/shoe", "color")),
        Kind(
            "men's t-shirts",
            "Clothing › Men › Shirts › T-Shirts",
            "T-Shirt",
            ("fit type", "color", "size/cloth"),
        ),
        Kind("women's pants", "Clothing › Women › Trousers › Pants", "Pants", ("color", "size/cloth")),
        Kind("women's coats", "Clothing › Women › Outerwear › Coats", "Coat", ("color", "size/cloth")),
    ),
    "beauty": (
        Kind("deodorants", "Beauty › Personal Care › Deodorant", "Deodorant Stick", ("scent", "size/ounce")),
        Kind("body lotions", "Beauty › Skin Care › Body › Lotions", "Body Lotion", ("scent", "size/ounce")),
        Kind("toothbrushes", "Beauty › Oral Care › Toothbrushes", "Toothbrush Set", ("color",)),
        Kind("hair masks", "Beauty › Hair Care › Hair Masks", "Hair Mask", ("scent", "size/milliliter")),
        Kind("makeup brushes", "Beauty › Tools › Makeup Brushes", "Makeup Brush Kit", ("color",)),
    ),
    "electronics": (
        Kind("headphones", "Electronics › Audio › Headphones", "Headphones", ("color",)),
        Kind("usb cables", "Electronics › Accessories › USB Cables", "USB Cable", ("size/feet", "color")),
        Kind("security cameras", "Electronics › Video › Security Cameras", "Security Camera", ("style",)),
        Kind("phone cases", "Electronics › Phones › Cases", "Phone Case", ("color", "size/phone")),
        Kind("power strips", "Electronics › Power › Power Strips", "Power Strip", ()),
    ),
    "garden": (
        Kind(
            "console tables",
            "Home › Furniture › Tables › Console Tables",
            "Console Table",
            ("color", "size/room"),
        ),
        Kind("bed frames", "Home › Furniture › Bedroom › Bed Frames", "Bed Frame", ("color", "size/bed")),
        Kind("ottomans", "Home › Furniture › Seating › Ottomans", "Storage Ottoman", ("color", "size/room")),
        Kind("window curtains", "Home › Windows › Curtains", "Window Curtains", ("color", "size/curtain")),
        Kind("barstools", "Home › Furniture › Seating › Barstools", "Bar Stool", ("color",)),
    ),
    "grocery": (
        Kind("almonds", "Grocery › Snacks › Nuts › Almonds", "Almonds", ("flavor name", "size/pack")),
        Kind("protein drinks", "Grocery › Drinks › Protein Drinks", "Protein Shake", ("flavor", "size/pack")),
        Kind("coffee", "Grocery › Drinks › Coffee", "Ground Coffee", ("flavor name", "size/pack")),
        Kind("granola bars", "Grocery › Snacks › Bars › Granola", "Granola Bars", ("flavor", "size/pack")),
    ),
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "color": (
        *(
            "Black",
            "White",
            "Navy Blue",
            "Grey",
            "Red",
            "Rose Gold",
            "Army Green",
            "Khaki",
            "Brown",
            "Charcoal",
        ),
        *("Purple", "Yellow", "Teal", "Leopard Print", "Orange", "Cream", "Pink/Mint"),
    ),
    "fit type": ("Men", "Women", "Youth"),
    "scent": ("Fresh Linen", "Woody", "Bright Citrus", "Calming Lavender", "Ginger", "Unscented"),
    "style": ("2 Cameras", "4 Cameras", "Base Station", "Add-on"),
    "flavor": ("Vanilla", "Chocolate", "Peanut Butter", "Salted Caramel", "Variety"),
    "flavor name": ("Pecan", "Country Ranch", "Dark Roast", "Sea Salt", "Hazelnut", "Pepper Jack"),
    "size/shoe": ("6", "7", "7.5", "8", "8.5 Wide", "9", "10", "11 Wide"),
    "size/cloth": ("X-Small", "Small", "Medium", "Large", "X-Large", "XX-Large", "3X-Large"),
    "size/ounce": ("1.6 Ounce", "3 Ounce", "8.5 Fl Oz", "10.6 Fl Oz (Pack of 2)"),
    "size/milliliter": ("60ml", "120ml", "250ml"),
    "size/feet": ("3ft", "6ft", "10ft", "15ft"),
    "size/phone": ("Galaxy S21", "Galaxy S21 Ultra", "iPhone 12/12 Pro", "iPhone 13"),
    "size/room": ("Narrow", "Regular", "47 x 12 x 30 Inch", "60 x 14 x 33 Inch"),
    "size/bed": ("Twin", "Full", "Queen", "King"),
    "size/curtain": ("52 x 63 Inch", "52 x 84 Inch", "42 x 95 Inch (2 Panels)"),
    "size/pack": ("4.25 Ounce (Pack of 1)", "4.25 Ounce (Pack of 12)", "12 Count", "1 Pound (Pack of 6)"),
}

_BRANDS = """
    Avenso Birchly Corvane Dunmore Ellory Fenwick Galora Hazeltine Ivoran Juniper Kestrela Lumova
    Marlowe Norrland Oakridge Pellam Quillan Rosedale Sundrift Tavira Umbria Verano Westcott Xandar
    Yarrow Zephyra
"""
BRANDS = tuple(_BRANDS.split())
_ADJECTIVES = """
    Lightweight Portable Classic Premium Vintage Modern Soft Durable Breathable Casual Adjustable
    Elegant Mini Professional Comfortable Rustic
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
BULLETS = (
    "{first} and made to keep its shape for years",
    "Designed by {brand}: every {noun} is checked twice before it ships",
    "{last}, and easy to look after",
    "Package includes 1 x {noun} and a printed guide",
    "Great gift for birthdays & holidays (ages 14+)",
    "Please allow 1-3 cm difference due to manual measurement",
)
SENTENCES = (
    "The {brand} {noun} is made for people who want a {first} product without paying too much.",
    "It is {last}, light and simple to use every day.",
    "Weight: about {weight} g.",
    "Our {noun} comes with a 12 month guarantee and fast shipping.",
    "Colors may vary slightly with your monitor.",
)
REQUESTS = (
    "i am looking for {article} {noun} that is {attributes}{options}.",
    "i need {noun} with {attributes}{options}",
    "find me {noun}, {attributes}{options}.",
    "looking for {attributes} {noun}{options}",
    "i would like to buy {noun}{options} which is {attributes}...",
    "show me {noun}{options} that are {attributes}.",
)
