"""Pictures as SVG: no script, and colours that the page's style sheet decides.

- `scales`: from numbers to places, and round numbers for an axis.
- `frame`: the grid and the axes of a large picture.
- `lines`: several series over one axis; `keys`: their marks and legend.
- `curve`: one series by step.
- `cloud`: a scatter on logarithmic axes.
- `whisker`: one interval, small enough for a row of a table.
- `bars`: counts, small enough for a row of a table.

Every series has a dash and a mark of its own, so that colour alone never tells them apart.
"""
