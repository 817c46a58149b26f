"""Makes a container in Azurite, with the account and key that it documents for everyone.

usage: azurite-container.py PORT CONTAINER
"""

import base64
import datetime
import hashlib
import hmac
import sys
import urllib.error
import urllib.request

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"

port, container = sys.argv[1], sys.argv[2]
date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{VERSION}\n{resource}"
signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
headers = {"x-ms-date": date, "x-ms-version": VERSION, "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
request = urllib.request.Request(f"http://127.0.0.1:{port}/{ACCOUNT}/{container}?restype=container", method="PUT", headers=headers)
try:
    urllib.request.urlopen(request, timeout=10)
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code} {error.read().decode(errors='replace')}")
