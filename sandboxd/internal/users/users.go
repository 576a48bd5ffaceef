// Package users finds out as whom a command runs, from the image's own /etc/passwd and /etc/group. Images without
// them, and users that they don't know, work by number.
package users

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// User is whom the kernel sees, and what login would put into the environment.
type User struct {
	UID, GID uint32
	Groups   []uint32
	// Name and Home are empty where the image doesn't know the user.
	Name, Home string
	// groupAsked says that the group was named, not looked up.
	groupAsked bool
}

// Find resolves "name", "uid", "name:group" or "uid:gid" in a folder that is /etc but in tests.
func Find(folder, text string) (User, error) {
	who, group, hasGroup := strings.Cut(text, ":")
	if who == "" || hasGroup && group == "" {
		return User{}, fmt.Errorf("user %q: write a name, a number, or both parts of uid:gid", text)
	}
	user, err := lookUp(filepath.Join(folder, "passwd"), who)
	if err != nil {
		return User{}, err
	}
	if hasGroup {
		gid, err := lookUpGroup(filepath.Join(folder, "group"), group)
		if err != nil {
			return User{}, err
		}
		user.GID, user.groupAsked = gid, true
	}
	user.Groups = groupsOf(filepath.Join(folder, "group"), user)
	return user, nil
}

func lookUp(passwd, who string) (User, error) {
	number, numeric := parse(who)
	for _, fields := range lines(passwd, 7) {
		uid, ok := parse(fields[2])
		if !ok || fields[0] != who && (!numeric || uid != number) {
			continue
		}
		if gid, ok := parse(fields[3]); ok {
			return User{UID: uid, GID: gid, Name: fields[0], Home: fields[5]}, nil
		}
	}
	switch {
	case numeric:
		return User{UID: number}, nil
	case who == "root":
		return User{Name: "root", Home: "/root"}, nil
	}
	return User{}, fmt.Errorf("%s has no user %q: name one of the image's, or a number", passwd, who)
}

func lookUpGroup(file, name string) (uint32, error) {
	if number, ok := parse(name); ok {
		return number, nil
	}
	for _, fields := range lines(file, 4) {
		if gid, ok := parse(fields[2]); ok && fields[0] == name {
			return gid, nil
		}
	}
	return 0, fmt.Errorf("%s has no group %q: name one of the image's, or a number", file, name)
}

func groupsOf(file string, user User) []uint32 {
	groups := []uint32{user.GID}
	if user.Name == "" {
		return groups
	}
	for _, fields := range lines(file, 4) {
		if gid, ok := parse(fields[2]); ok && slices.Contains(strings.Split(fields[3], ","), user.Name) {
			groups = append(groups, gid)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// lines splits a file of colon-separated fields. One that is missing or can't be read has no lines.
func lines(path string, count int) [][]string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	var found [][]string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if fields := strings.Split(scanner.Text(), ":"); len(fields) >= count {
			found = append(found, fields)
		}
	}
	return found
}

func parse(text string) (uint32, bool) {
	number, err := strconv.ParseUint(text, 10, 32)
	// The last number stands for "no change" in the kernel's interfaces.
	return uint32(number), err == nil && number != 1<<32-1
}
