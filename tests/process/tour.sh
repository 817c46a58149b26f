#!/usr/bin/env bash
set -euo pipefail
URL=${FOREBAY_URL:-http://127.0.0.1:7440}
JOB=$URL/v1/jobs/q1
PART=$JOB/datasets/stage-1/partitions/0
JSON='Content-Type: application/json'
curl -sS -X PUT $JOB -H "$JSON" -d '{"owner_nonce":"driver-1"}'
curl -sS -X PUT $JOB/datasets/stage-1 -H "$JSON" -d '{"kind":"blocking","partitions":8,"subpartitions":4}'
LIFE=$(curl -sS $PART/attempts -H "$JSON" -d '{"generation":0,"attempt":0}' | sed 's/.*"life":"\([0-9a-f]*\)".*/Forebay-Node-Life: \1/')
curl -sS -T - "$PART/attempts/0.0/subpartitions/3?offset=0" -H "$LIFE" -H 'Content-Type: application/octet-stream' <<< 'hello, consumer 3'
curl -sS -X POST $PART/attempts/0.0/seal -H "$LIFE"
curl -sS $PART/subpartitions/3                     # hello, consumer 3
curl -sS -r 7-14 $PART/subpartitions/3             # consumer
curl -sS $URL/v1/jobs/q2                           # "code":"unknown_job"
curl -sS $JOB/datasets/stage-1/partitions/8        # "code":"unknown_partition"
curl -sS -X DELETE $PART -H 'Forebay-Job-Epoch: 1'
curl -sS $PART/subpartitions/3                     # "code":"released"
