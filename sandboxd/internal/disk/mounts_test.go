package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	container = strings.Repeat("0b", 32)
	hash      = strings.Repeat("c4", 32)
	sandbox   = strings.Repeat("7f", 32)
)

// As in containers of containerd 1.6 and 2.2, and of CRI-O with image_volumes = "bind".
func lines() string {
	cri := "/var/lib/containerd/io.containerd.grpc.v1.cri"
	pod := "/var/lib/kubelet/pods/3f1c4e6a-7c1e-4d39-a0c5-0d6f8f0f5a11"
	return strings.Join([]string{
		`1160 1005 0:125 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d`,
		`1161 1160 0:127 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw`,
		`1162 1160 0:128 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755`,
		`1165 1160 254:0 ` + pod + `/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw`,
		`1166 1162 254:0 ` + pod + `/containers/sandbox/1f0a2b3c /dev/termination-log rw,relatime - ext4 /dev/vda rw`,
		`1167 1160 254:0 ` + cri + `/sandboxes/` + sandbox + `/hostname /etc/hostname rw,relatime - ext4 /dev/vda rw`,
		`1168 1160 254:0 ` + cri + `/sandboxes/` + sandbox + `/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/vda rw`,
		`1169 1162 0:119 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k`,
		`1170 1160 254:0 ` + pod + `/volumes/kubernetes.io~empty-dir/gymtrain /gymtrain ro,relatime - ext4 /dev/vda rw`,
		`1171 1160 254:0 ` + pod + `/volumes/kubernetes.io~empty-dir/work /work rw,relatime - ext4 /dev/vda rw`,
		`1172 1160 254:0 ` + cri + `/containers/` + container + `/volumes/` + hash + ` /data rw,relatime - ext4 /dev/vda rw`,
		`1173 1160 254:16 /io.containerd.grpc.v1.cri/containers/` + container + `/volumes/` + hash + ` /with\040a\134blank rw,relatime master:1 shared:2 - xfs /dev/vdb rw`,
		`1174 1160 254:16 /@/my\040state/containers/` + container + `/volumes/` + hash + ` /deep/one rw,relatime - btrfs /dev/vdb rw`,
		`1175 1160 254:16 /io.containerd.grpc.v1.cri/containers/` + container + `/volumes/` + hash + ` /not-written ro,relatime - xfs /dev/vdb rw`,
		`1176 1160 0:25 /containers/storage/overlay-containers/` + container + `/userdata/mounts/` + hash + ` /crio rw - tmpfs tmpfs rw`,
		`1177 1160 254:0 /srv/containers/mine/volumes/data /hostpath rw,relatime - ext4 /dev/vda rw`,
		``,
		`torn line`,
	}, "\n")
}

func TestVolumesOfTheImageAreToldFromOtherMounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(file, []byte(lines()), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts, err := readMounts(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/data", `/with a\blank`, "/deep/one", "/crio"}; !slices.Equal(volumesOf(mounts), want) {
		t.Fatalf("%q, not %q", volumesOf(mounts), want)
	}
}

func TestOnlyWholeEscapesAreUndone(t *testing.T) {
	for text, want := range map[string]string{
		`/a\040b`:        "/a b",
		`/a\011b\012c`:   "/a\tb\nc",
		`/a\134040b`:     `/a\040b`,
		`/a\`:            `/a\`,
		`/a\04`:          `/a\04`,
		`/a\999b`:        `/a\999b`,
		`/\303\244\043x`: "/ä#x",
	} {
		if got := unescaped(text); got != want {
			t.Errorf("%s became %q, not %q", text, got, want)
		}
	}
}
