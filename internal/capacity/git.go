package capacity

import "strconv"

// limited runs a command with a limit for the memory that it and each of its
// children may write to (RLIMIT_DATA; a limit of addresses would count packs that
// are mapped, and not let Go's runtime start). It is the soft limit: a hook that git
// runs may set its own. Where the container allows less, that stays.
const limited = `ulimit -S -d "$0" 2>/dev/null; exec "$@"`

// LimitedCommand is the command line of git with a limit of so many bytes; 0 for none.
func LimitedCommand(git string, bytes int64, args []string) (name string, words []string) {
	if bytes <= 0 {
		return git, args
	}
	return "/bin/sh", append([]string{"-c", limited, strconv.FormatInt(bytes>>10, 10), git}, args...)
}
