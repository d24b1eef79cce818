"""The words that name clusters: a theme shows in the category and in the titles."""

THEMES: dict[str, tuple[str, str, str]] = {
    "sea": ("Harbour", "Tide", "Sailor"),
    "mountain": ("Summit", "Glacier", "Ridge"),
    "space": ("Orbit", "Comet", "Starship"),
    "crime": ("Detective", "Alibi", "Heist"),
    "romance": ("Letter", "Wedding", "Kiss"),
    "horror": ("Crypt", "Shadow", "Scream"),
    "war": ("Trench", "Bunker", "Convoy"),
    "music": ("Sonata", "Chorus", "Drummer"),
    "sport": ("Striker", "Marathon", "Goalpost"),
    "cooking": ("Kitchen", "Recipe", "Oven"),
    "garden": ("Orchard", "Rosebush", "Meadow"),
    "magic": ("Wizard", "Spell", "Dragon"),
    "school": ("Teacher", "Homework", "Campus"),
    "railway": ("Locomotive", "Platform", "Signalman"),
    "flight": ("Pilot", "Runway", "Propeller"),
    "desert": ("Dune", "Caravan", "Oasis"),
    "jungle": ("Jaguar", "Liana", "Parrot"),
    "polar": ("Icebreaker", "Penguin", "Aurora"),
    "robots": ("Android", "Circuit", "Engine"),
    "spies": ("Agent", "Cipher", "Embassy"),
    "law": ("Verdict", "Juror", "Courtroom"),
    "medicine": ("Surgeon", "Ward", "Remedy"),
    "history": ("Empire", "Castle", "Monarch"),
    "western": ("Saloon", "Sheriff", "Prairie"),
    "theatre": ("Curtain", "Actress", "Rehearsal"),
    "painting": ("Canvas", "Portrait", "Fresco"),
    "chess": ("Gambit", "Bishop", "Checkmate"),
    "animals": ("Otter", "Badger", "Falcon"),
    "city": ("Avenue", "Rooftop", "Subway"),
    "farm": ("Barn", "Tractor", "Harvest"),
    "money": ("Banker", "Ledger", "Fortune"),
    "puzzles": ("Labyrinth", "Riddle", "Jigsaw"),
}
"""Three words of each theme; no word stands in two themes."""

ADJECTIVES = (
    "Quiet", "Golden", "Broken", "Hidden", "Northern", "Electric", "Velvet", "Distant",
    "Crooked", "Silver", "Restless", "Burning", "Forgotten", "Hollow", "Painted", "Midnight",
    "Paper", "Second", "Lonely", "Wild", "Frozen", "Borrowed", "Secret", "Last",
)  # fmt: skip
"""Words that say nothing of the cluster."""
