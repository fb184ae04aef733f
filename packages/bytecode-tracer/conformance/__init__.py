"""Small Python programs, each run compiled against eager on several argument sets."""
