"""The live view of a run in a terminal. Frozen values in, rich text out; only `terminal` and `caught` touch the world.

look       what one look at a run showed, wherever it came from
history    the last minutes, from the seconds that workers tell and store: the same in every view
news       what has changed from one look to the next, in words
viewer     looks → RunView
view       RunView: everything that is on the screen
screen     RunView → lines of text, for any size: `parts`, `charts`, `workers`, `ladder` and `pages` draw; `draw` and
           `words` help
live       when to draw, and what keys do
terminal   the terminal itself: alternate screen, keys, size; never blocks
caught     what others print while the screen is shown
"""
