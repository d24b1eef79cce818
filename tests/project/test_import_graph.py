"""The imports of modules, including imports within functions."""

import graphlib

import grimp


def circle_in(imports):
    """Returns modules that import each other in a circle; none if there is no circle."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_a_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])


def test_no_modules_import_each_other_in_a_circle():
    roots = ("recsys", "components", "pipelines")
    graph = grimp.build_graph(*roots, exclude_type_checking_imports=True, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 300
    assert circle_in(imports) == []
