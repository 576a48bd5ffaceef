// Package disk watches what commands can fill of the node's disk though the kubelet doesn't count it: single files of
// the pod, which are mounted from the node, and the volumes that the image declares.
package disk

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"gymtrain.dev/sandboxd/internal/files"
)

const (
	// FilesFull and VolumesFull are the daemon's exit codes, which the broker reads (gymtrain_api.sandboxes, DaemonExit).
	FilesFull   = 80
	VolumesFull = 81

	// fileLimit is far more than anybody writes into one of the files: the kubelet reads 4 KiB of a message.
	fileLimit = 1 << 20

	every = 2 * time.Second
	// patience is how long it may be impossible to count everything: what is in the way may go away by itself.
	patience = 30 * time.Second
	// emptying bounds how long the volumes are emptied at the end: what is left goes with the pod.
	emptying = 5 * time.Second
)

// Places are where to look; what is empty isn't there.
type Places struct {
	// Mounts is the kernel's list of mounts.
	Mounts string
	// Message is the file whose end the kubelet reads when the container has ended.
	Message string
	// Files are others that the runtime mounts from the node. /etc/hosts is the kubelet's, which counts it.
	Files []string
}

// InAContainer are the places in a container of Kubernetes.
var InAContainer = Places{
	Mounts:  "/proc/self/mountinfo",
	Message: "/dev/termination-log",
	Files:   []string{"/etc/hostname", "/etc/resolv.conf"},
}

// Full is why the sandbox has to end.
type Full struct {
	Code int
	text string
}

func (f *Full) Error() string { return f.text }

// volume is an open folder, and where it was mounted.
type volume struct {
	point  string
	root   *os.Root
	folder *os.File
}

func openVolume(point string) (volume, error) {
	root, err := os.OpenRoot(point)
	if err != nil {
		return volume{}, err
	}
	folder, err := root.Open(".")
	if err != nil {
		root.Close()
		return volume{}, err
	}
	return volume{point, root, folder}, nil
}

// Watch is what to look at. All of it was opened when the daemon started: nothing in the sandbox can mount, but
// commands can rename the folders above a mount.
type Watch struct {
	message *os.File // nil without one
	files   []*os.File
	volumes []volume
	mounted map[inode]bool
	limit   int64
	most    int

	// uncounted is since when not everything could be counted.
	uncounted time.Time
}

// New finds out what to watch. Without a limit, the volumes may take what they like.
func New(places Places, limit int64) *Watch {
	watch := &Watch{message: writable(places.Message), mounted: make(map[inode]bool), limit: limit, most: mostEntries}
	if watch.message != nil {
		watch.files = append(watch.files, watch.message)
	}
	mounts, err := readMounts(places.Mounts)
	if err != nil && places.Mounts != "" {
		log.Printf("volumes of the image are not watched: %v", err)
	}
	points := make(map[string]bool)
	for _, one := range mounts {
		points[one.point] = true
		if info, err := os.Lstat(one.point); err == nil {
			watch.mounted[inodeOf(info)] = true
		}
	}
	for _, path := range places.Files {
		if file := writable(path); file != nil && points[path] {
			watch.files = append(watch.files, file)
		}
	}
	for _, point := range volumesOf(mounts) {
		// What this user can't open, its commands can't fill.
		if opened, err := openVolume(point); err == nil {
			watch.volumes = append(watch.volumes, opened)
		} else {
			log.Printf("a volume of the image is not watched: %v", err)
		}
	}
	if len(watch.volumes) > 0 && limit > 0 {
		log.Printf("volumes of the image may take %s: %s", size(float64(limit)), watch.names())
	}
	return watch
}

// writable is the file, or nil where commands can't write it either.
func writable(path string) *os.File {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return file
}

// Start looks again and again, and tells why the sandbox has to end.
func (w *Watch) Start() <-chan *Full {
	told := make(chan *Full, 2)
	// Two, so that a long walk holds up no look at the files.
	go repeat(w.lookAtFiles, told)
	if w.limit > 0 && len(w.volumes) > 0 {
		go repeat(w.lookAtVolumes, told)
	}
	return told
}

func repeat(look func() *Full, told chan<- *Full) {
	for {
		if full := look(); full != nil {
			told <- full
			return
		}
		time.Sleep(every)
	}
}

func (w *Watch) lookAtFiles() *Full {
	for _, file := range w.files {
		if held := taken(file); held > fileLimit {
			text := fmt.Sprintf("%s took %s of the node's disk, and may take %s", file.Name(), size(held), size(fileLimit))
			return &Full{FilesFull, text}
		}
	}
	return nil
}

func taken(file *os.File) float64 {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	return blocks(info)
}

func (w *Watch) lookAtVolumes() *Full {
	count := counter{mounted: w.mounted, limit: w.limit, most: w.most, since: time.Now()}
	for _, one := range w.volumes {
		count.volume(one)
	}
	full := func(text string, values ...any) *Full {
		return &Full{VolumesFull, "the volumes of its image (" + w.names() + ") " + fmt.Sprintf(text, values...)}
	}
	switch {
	case count.bytes > float64(w.limit):
		return full("took more than %s, its limit of ephemeral storage", size(float64(w.limit)))
	case count.entries > w.most:
		return full("held more than %d files, the most that are counted", w.most)
	case count.uncounted == nil:
		w.uncounted = time.Time{}
	case w.uncounted.IsZero():
		w.uncounted = time.Now()
	case time.Since(w.uncounted) > patience:
		return full("could not be counted for %s: %v", patience, count.uncounted)
	}
	return nil
}

// Free gives the node its disk back once nothing else runs. The container's end alone doesn't: the kubelet keeps the
// message and the volumes of the last container that ended. `full` is the last word, which the kubelet reads.
func (w *Watch) Free(full *Full) {
	for _, file := range w.files {
		if taken(file) > fileLimit {
			_ = file.Truncate(0)
		}
	}
	if full != nil && w.message != nil {
		_ = w.message.Truncate(0)
		_, _ = w.message.WriteAt([]byte(full.text+"\n"), 0)
	}
	folders := make([]string, 0, len(w.volumes))
	for _, one := range w.volumes {
		// Not by its path, which may lead elsewhere by now.
		folders = append(folders, fmt.Sprintf("/proc/self/fd/%d", one.folder.Fd()))
	}
	done := make(chan struct{})
	go func() {
		// Files of other users, which came with the image, stay.
		_ = files.Wipe(folders)
		// Until here: the garbage collector closes an open folder that nothing refers to, and what its number led to
		// would stay, or be another's.
		runtime.KeepAlive(w)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(emptying):
	}
}

// names are the volumes' paths, short enough for a message.
func (w *Watch) names() string {
	const most, length = 3, 60
	var shown []string
	for _, one := range w.volumes[:min(len(w.volumes), most)] {
		point := one.point
		if len(point) > length {
			point = "..." + point[len(point)-length:]
		}
		shown = append(shown, point)
	}
	if more := len(w.volumes) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return strings.Join(shown, ", ")
}

// size is a number of bytes for people.
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for bytes >= 1024 && unit < len(units)-1 {
		bytes /= 1024
		unit++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", bytes), ".0") + " " + units[unit]
}
