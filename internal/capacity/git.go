package capacity

import "strconv"

// limited runs a command with a limit on the memory that it and each of its children may
// write to (RLIMIT_DATA; a limit on address space would count mapped packs, and keep Go's
// runtime from starting). It sets the soft limit, so that a hook that git runs may set its
// own. If the container allows less, its limit stays.
const limited = `ulimit -S -d "$0" 2>/dev/null; exec "$@"`

// LimitedCommand returns the command line that runs git with a memory limit in bytes, 0 for
// no limit.
func LimitedCommand(git string, bytes int64, args []string) (name string, words []string) {
	if bytes <= 0 {
		return git, args
	}
	return "/bin/sh", append([]string{"-c", limited, strconv.FormatInt(bytes>>10, 10), git}, args...)
}
