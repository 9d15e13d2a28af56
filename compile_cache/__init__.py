"""From modules and example inputs to a verified, loaded binary.

The package knows nothing of the model it serves. Three paths lead through it:

* look up:  `key.key_fields` -> `key.key_of` -> `sources.open_first` -> `binary.Binary`
* build:    `produce.produce` (= `build.build_package` -> `proof.prove` -> `eager.compare` -> `store.LocalStore.put`)
* look after the store:  `python -m compile_cache`

Nothing is imported here, so that the look-up path does not pay for the compiler.
"""
