"""The families of generated tasks, by name.

* ``easy``: one command each, so that a tiny model can learn something.
* ``search``: find, count and change text.
* ``data``: tables, CSV and JSON.
* ``files``: names, permissions, links, archives.
* ``system``: processes and git.
* ``programs``: mend or write a program, which is tried on hidden inputs.
"""

from __future__ import annotations

from types import MappingProxyType

from agentrl.tasks.shell.draft import Family
from agentrl.tasks.shell.families import data, easy, files, programs, search, system

FAMILIES: MappingProxyType[str, Family] = MappingProxyType(
    {
        family.__name__: family
        for family in (
            *(easy.write_word, easy.copy_file, easy.rename_file, easy.make_folder),
            *(
                search.find_files,
                search.count_errors,
                search.replace_setting,
                search.busiest_address,
                search.join_notes,
            ),
            *(data.sum_column, data.filter_json, data.csv_to_json, data.merge_tables, data.top_values),
            *(files.set_modes, files.number_files, files.latest_release, files.pack_texts, files.unpack_one),
            *(files.remove_duplicates, files.find_damaged),
            *(system.run_worker, system.lost_file, system.who_changed),
            *(programs.fix_function, programs.write_filter),
        )
    }
)
"""Every family, in the order of the page."""
EASY = ("write_word", "copy_file", "rename_file", "make_folder")
NEEDS = MappingProxyType({"lost_file": "git", "who_changed": "git"})
"""Programs besides coreutils, findutils, grep, sed, awk, tar and python3."""
