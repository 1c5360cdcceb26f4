package pgtest

import (
	"os"
	osuser "os/user"
	"strconv"
	"syscall"
)

// unprivileged returns the attributes of a child process that PostgreSQL accepts: it
// refuses to run as root, so root switches to the user postgres, or else nobody.
func unprivileged() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if uid, gid, ok := account(); ok {
		attributes.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return attributes
}

// chown changes the owner of the folder to the account that the server runs as.
func chown(folder string) error {
	uid, gid, ok := account()
	if !ok {
		return nil
	}
	return os.Chown(folder, int(uid), int(gid))
}

// account returns the account to run as; ok is false for the current one.
func account() (uid, gid uint32, ok bool) {
	if os.Getuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		id, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		group, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return uint32(id), uint32(group), true
	}
	return 65534, 65534, true
}
