package disk

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mount is one line of /proc/self/mountinfo: the folder or file of a disk that is seen at a path.
type mount struct {
	root, point string
	readOnly    bool
}

// ofImages are the folders that runtimes make for the volumes of an image, wherever on a node they keep their state.
var ofImages = []*regexp.Regexp{
	// containerd: .../io.containerd.grpc.v1.cri/containers/ID/volumes/ID
	regexp.MustCompile(`/containers/[0-9a-f]{64}/volumes/[0-9a-f]{64}$`),
	// CRI-O, where image_volumes is "bind": .../overlay-containers/ID/userdata/mounts/ID
	regexp.MustCompile(`-containers/[0-9a-f]{64}/userdata/mounts/[0-9a-f]{64}$`),
}

func readMounts(path string) ([]mount, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []mount
	for _, line := range strings.Split(string(text), "\n") {
		// 36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		options := strings.Split(fields[5], ",")
		found = append(found, mount{unescaped(fields[3]), unescaped(fields[4]), slices.Contains(options, "ro")})
	}
	return found, nil
}

// unescaped undoes what the kernel writes for blanks and backslashes: three octal digits after a backslash.
func unescaped(text string) string {
	var made strings.Builder
	for len(text) > 0 {
		if text[0] == '\\' && len(text) >= 4 {
			if code, err := strconv.ParseUint(text[1:4], 8, 8); err == nil {
				made.WriteByte(byte(code))
				text = text[4:]
				continue
			}
		}
		made.WriteByte(text[0])
		text = text[1:]
	}
	return made.String()
}

// volumesOf are the paths of the image's volumes that can be written.
func volumesOf(mounts []mount) []string {
	var found []string
	for _, one := range mounts {
		ofImage := slices.ContainsFunc(ofImages, func(form *regexp.Regexp) bool { return form.MatchString(one.root) })
		if ofImage && !one.readOnly && !slices.Contains(found, one.point) {
			found = append(found, one.point)
		}
	}
	return found
}
