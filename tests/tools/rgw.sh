#!/usr/bin/env bash
# A real S3 gateway (Ceph) over one storage daemon in memory, on loopback only.
#   rgw.sh start DIRECTORY PORT    all state goes into DIRECTORY; returns once it answers
#   rgw.sh stop DIRECTORY
# Room for objects: FOREBAY_RGW_BYTES, 2 GiB unless set. Access key "forebay", secret "forebay-secret". Uses the loopback port 3300 for its monitor.
set -euo pipefail

action=${1:?start or stop}
state=${2:?a directory}

stop() {
  local file
  for file in "$state"/run/*.pid; do
    [ -e "$file" ] || continue
    kill "$(cat "$file")" 2>/dev/null || true
  done
}

write_configuration() {
  local cluster=$1 port=$2
  cat >"$state/ceph.conf" <<CONF
[global]
fsid = $cluster
mon_initial_members = a
mon_host = v2:127.0.0.1:3300
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
mon_data = $state/mon
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 2000
osd_data = $state/osd
osd_objectstore = memstore
memstore_device_bytes = ${FOREBAY_RGW_BYTES:-2147483648}
osd_crush_chooseleaf_type = 0
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
run_dir = $state/run
pid_file = $state/run/\$name.pid
admin_socket = $state/run/\$name.asok
log_file = $state/log/\$name.log
[client]
keyring = /dev/null
[client.rgw]
rgw_data = $state/rgw
rgw_frontends = beast endpoint=127.0.0.1:$port
rgw_enable_usage_log = false
# Without these two the gateway hangs at its start when the cluster has no authentication.
ms_mon_client_mode = crc
auth_client_required = none
CONF
}

start() {
  local port=$1 cluster disk
  mkdir -p "$state"/{mon,osd,rgw,run,log}
  cluster=$(cat /proc/sys/kernel/random/uuid)
  disk=$(cat /proc/sys/kernel/random/uuid)
  write_configuration "$cluster" "$port"
  export CEPH_CONF="$state/ceph.conf"
  monmaptool --create --addv a '[v2:127.0.0.1:3300]' --fsid "$cluster" "$state/monmap" >/dev/null
  ceph-mon --mkfs -i a --monmap "$state/monmap"
  ceph-mon -i a
  ceph osd new "$disk" >/dev/null
  ceph-osd -i 0 --mkfs --osd-uuid "$disk"
  ceph-osd -i 0
  setsid radosgw -f -n client.rgw --log-to-stderr=false >"$state/log/rgw.out" 2>&1 &
  echo $! >"$state/run/gateway.pid"
  for _ in $(seq 300); do
    if curl -s -o /dev/null "http://127.0.0.1:$port/"; then
      radosgw-admin user create --uid=forebay --display-name=forebay --access-key=forebay --secret-key=forebay-secret >/dev/null
      return
    fi
    sleep 0.2
  done
  echo "the gateway did not answer on port $port" >&2
  stop
  exit 1
}

case "$action" in
start) start "${3:?a port}" ;;
stop) stop ;;
*)
  echo "usage: rgw.sh start DIRECTORY PORT | rgw.sh stop DIRECTORY" >&2
  exit 2
  ;;
esac
