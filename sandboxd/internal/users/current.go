package users

import (
	"fmt"
	"os"
	"syscall"
)

// NotPermitted is a user that exists, and that the daemon may not become.
type NotPermitted struct{ Text string }

func (e NotPermitted) Error() string { return e.Text }

// Credential is what starts a process as the user, nil where that is who the daemon is anyway.
func (u User) Credential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		if int(u.UID) == os.Geteuid() && (int(u.GID) == os.Getegid() || !u.groupAsked) {
			return nil, nil
		}
		return nil, NotPermitted{fmt.Sprintf(
			"the sandbox runs as %d:%d and can't become %d:%d: leave the user out, or set spec.sandboxes.root",
			os.Geteuid(), os.Getegid(), u.UID, u.GID)}
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}, nil
}

// Environment is what login would set.
func (u User) Environment() []string {
	var pairs []string
	if u.Home != "" {
		pairs = append(pairs, "HOME="+u.Home)
	}
	if u.Name != "" {
		pairs = append(pairs, "USER="+u.Name, "LOGNAME="+u.Name)
	}
	return pairs
}
