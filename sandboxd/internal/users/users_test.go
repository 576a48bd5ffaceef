package users

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

const passwd = `root:x:0:0:root:/root:/bin/sh
agent:x:1000:1001::/home/agent:/bin/sh
broken:x:many:1::/:/bin/sh
short:x
`

const group = `root:x:0:
docker:x:990:someone,agent
video:x:44:agent
`

func TestUsersAreFoundByNameAndNumber(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(full, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	agent := User{UID: 1000, GID: 1001, Groups: []uint32{44, 990, 1001}, Name: "agent", Home: "/home/agent"}
	inVideo := agent
	inVideo.GID, inVideo.Groups, inVideo.groupAsked = 44, []uint32{44, 990}, true
	cases := map[string]struct {
		folder, text string
		want         *User
	}{
		"a name":                        {full, "agent", &agent},
		"a number that has a name":      {full, "1000", &agent},
		"a name and a group":            {full, "agent:video", &inVideo},
		"a number that nobody knows":    {full, "4321", &User{UID: 4321, Groups: []uint32{0}}},
		"two numbers without any files": {empty, "7:8", &User{UID: 7, GID: 8, Groups: []uint32{8}, groupAsked: true}},
		"root without any files":        {empty, "root", &User{Groups: []uint32{0}, Name: "root", Home: "/root"}},
		"a name that nobody knows":      {full, "nobody", nil},
		"a group that nobody knows":     {full, "agent:nobody", nil},
		"a name with a broken number":   {full, "broken", nil},
		"only a group":                  {full, ":44", nil},
		"an empty group":                {full, "agent:", nil},
		"the number for no change":      {full, "4294967295", nil},
		"a negative number":             {full, "-1", nil},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			user, err := Find(one.folder, one.text)
			if one.want == nil {
				if err == nil {
					t.Fatalf("%+v, should fail", user)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(user, *one.want) {
				t.Fatalf("%+v, %v; not %+v", user, err, *one.want)
			}
		})
	}
}
