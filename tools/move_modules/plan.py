import json
from pathlib import Path
HERE = Path(__file__).parent
inv=json.load(open(HERE / 'map.json'))
M={}
for s,t in inv.items():
    t=t.replace('moved out/','')
    t=t.replace('cdc_lake_devtools/','devtools/').replace('tools/docs/generate','cli/docs_generator').replace('notebooks/charts','charts')
    if 'DELETED' in t: t='decode/in_parts.py'
    M['cdc_lake.'+s.replace('/','.')]='cdc_lake.'+t[:-3].replace('/','.')
extra={'lake/json_lines':'tables/delta_log','lake/owner':'tables/silver_table','decode/historic_catalog':'decode/historic_catalog','pipeline/applying/pending_work':'runtime/apply/pending_work','pipeline/restart':'runtime/restart','pipeline/state/ownership':'control/ownership','pipeline/target/shared_names':'runtime/apply/schema_changes','api':'api','decode/in_parts':'decode/in_parts'}
for s,t in extra.items(): M['cdc_lake.'+s.replace('/','.')]='cdc_lake.'+t.replace('/','.')
for s in ('cli/payload_verbs','cli/render_replay'): M['cdc_lake.'+s.replace('/','.')]='cdc_lake.cli.commands.recordings'
for s in ('record','replay','payload'): M['cdc_lake.pipeline.inspect.'+s]='cdc_lake.devtools.replay'
# order of sources as in the map
json.dump({"modules":M},open(HERE / 'plan.json', 'w'),indent=1)
print(len(M),len(set(M.values())))
R="""
bronze/split _AT_ONCE _READ_AT_ONCE_BYTES
bronze/touching _AT_ONCE _FILES_AT_ONCE
bronze/outline _COLUMNS _SUMMARY_COLUMNS
bronze/split _COLUMNS _SPAN_COLUMNS
bronze/touching _COLUMNS _KEY_SCAN_COLUMNS
cli/cuts_verbs _time _duration
cli/render_cuts _time _timestamp
cli/render_parked _row _prepared_row
cli/render_row _row _row_text
cli/pause_verbs _text _pause_text
cli/upgrade_verbs _text _upgrade_text
cli/pause_verbs register register_pause
cli/rebuild_verbs register register_rebuild
cli/resync_verb register register_resync
cli/upgrade_verbs register register_upgrade
cli/bundle_verbs register register_bundle
cli/offline_verbs register register_offline
cli/render_types _COLOURS _TYPE_COLOURS
cli/logs forget forget_log
cli/traces forget forget_secrets
cli/document line json_line
cli/stages line progress_line
config/rule_checks _twice _columns_named_twice
config/transform_checks _twice _texts_named_twice
config/storage_checks _error _storage_error
config/undecodable_checks _error _undecodable_error
config/checks _silver _silver_tables
config/storage_checks _silver _silver_storage
decode/room _MOST _LARGEST_BUFFER
decode/walk _MOST _LARGEST_OFFSET
decode/mppdb/lines _TABLE _TABLE_PATTERN
decode/mppdb/payload _TABLE _TABLE_PREFIX
decode/mppdb/json_walk _QUOTE _JSON_QUOTE
decode/mppdb/text_walk _QUOTE _LITERAL_QUOTE
decode/mppdb/json_walk _Quotes _JsonQuotes
decode/mppdb/text_walk _Quotes _LiteralQuotes
decode/mppdb/json_walk _quotes _json_quotes
decode/mppdb/text_walk _quotes _literal_quotes
decode/mppdb/json_walk _shape _json_shape
decode/mppdb/text_walk _shape _text_shape
decode/mppdb/json_walk _walk _walk_json
decode/mppdb/text_walk _walk _walk_text
decode/pgoutput_stream _commit _stream_commit
decode/undecodable READING READING_FIELD
deploy/bundle_references _REFERENCE _VARIABLE_REFERENCE
deploy/bundle_secrets _REFERENCE _SECRET_REFERENCE
deploy/bundle_references _jobs _job_names
deploy/bundle_references _keys _entry_names
deploy/fields _keys _field_names
decode/mppdb/overwrite overwritten overwritten_record
decode/overwrite_pgoutput overwritten overwritten_message
cli/payload_verbs record record_command
cli/payload_verbs replay replay_command
source/capture _ALIVE _KEEPALIVE_TAG
source/capture _DATA _DATA_TAG
decode/describe _ROWS _ROW_OPERATIONS
decode/describe_pgoutput _ROWS _ROW_TAGS
lake/types_page _row _type_row
source/catalog _COLUMNS _RELATION_COLUMNS
source/decoded_tables _COLUMNS _DECODED_COLUMNS
source/catalog _IDENTITIES _RELATION_IDENTITIES
source/decoded_tables _IDENTITIES _DECODED_IDENTITIES
lake/delta_silver_upkeep _lost _delta_commit_lost
lake/iceberg_silver_upkeep _lost _iceberg_commit_lost
lake/delta_leftovers leftovers delta_leftovers
lake/iceberg_leftovers leftovers iceberg_leftovers
lake/delta_leftovers remove remove_from_folder
lake/iceberg_leftovers remove remove_from_iceberg
lake/store_leftovers remove remove_from_store
lake/delta_retention _set _set_properties
lake/versions _set _set_refs
pipeline/gaussdb/start begin start_stream
lake/store_leftovers metadata metadata_files
decode/mppdb/lines boundary line_boundary
"""
S={}
for l in R.strip().splitlines():
    s,a,b=l.split(); o='cdc_lake.'+s.replace('/','.')
    S[f"{o}:{a}"]=f"{M[o]}:{b}"
for n in ('quoted','literal','SilverColumn'): S[f'cdc_lake.lake.store:{n}']=f'cdc_lake.tables.types:{n}'
S['cdc_lake.lake.store:store']='cdc_lake.tables.open_silver_table:store'
S['cdc_lake.decode.plain:Numbering']='cdc_lake.decode.change_batch:Numbering'
S['cdc_lake.decode.postgres_lines:described_line']='cdc_lake.devtools.wire_dump:described_line'
S['cdc_lake.pipeline.slots:WAITED']='cdc_lake.runtime.restart:WAITED'
A={}
for l in """cli/bars Progress BarProgress
compare/x Key Key
decode/mppdb/text_walk Shape TextShape
decode/mppdb/json_walk Shape JsonShape
decode/mppdb/text_walk shape_of text_shape_of
decode/mppdb/json_walk shape_of json_shape_of
decode/describe Begin GaussBegin
decode/describe Commit GaussCommit
pipeline/compare/held Key RowKey
pipeline/compare/forward Key RowKey
lake/delta_store remove remove_from_store
bronze/ledger SOURCES TYPED_SOURCES
pipeline/stream/copies_beside Opened OpenedConnection
lake/delta_place remove remove_from_folder""".splitlines():
    s,a,b=l.split()
    if s.startswith('compare/x'): continue
    A[f"cdc_lake.{s.replace('/','.')}:{a}"]=b
D=["_T","_DATA","_WORD","_LOOK","_VERSION","_TEXT","_EPOCH_2000","_ATTEMPTS","_FIRST_PAUSE","_LONGEST_PAUSE","_STEADY"]
X={"cdc_lake.tables.open_silver_table":["from cdc_lake.config.project import Project, Target","from cdc_lake.tables.silver_table import SilverStore","from pyspark.sql import SparkSession"],"cdc_lake.tables.types":["from dataclasses import dataclass"],"cdc_lake.devtools.wire_dump":["from cdc_lake.decode.test_decoding import MessageLine, PhaseLine"],"cdc_lake.decode.change_batch":["from cdc_lake.model.relation import Relation"]}
json.dump({"imports":X,"modules":M,"symbols":S,"aliases":A,"duplicates":D},open(HERE / 'plan.json', 'w'),indent=1)
