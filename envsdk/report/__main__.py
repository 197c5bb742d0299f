import sys

from envsdk.report.command import main

sys.exit(main())
