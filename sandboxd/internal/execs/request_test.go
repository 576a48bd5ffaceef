package execs

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRequestsAreChecked(t *testing.T) {
	cases := map[string]struct{ body, wrong string }{
		"a command":             {`{"command":["true"]}`, ""},
		"a shell text":          {`{"shell":"echo $HOME","cwd":null,"env":{},"user":null,"timeoutSeconds":null,"stdin":null}`, ""},
		"everything":            {`{"command":["a","b"],"cwd":"/","env":{"A":"b"},"user":"1:2","timeoutSeconds":0.5,"stdin":"aGk=","maxOutputBytes":0}`, ""},
		"neither":               {`{}`, "command"},
		"both":                  {`{"command":["true"],"shell":"true"}`, "either"},
		"an empty program":      {`{"command":[""]}`, "command[0]"},
		"a misspelt field":      {`{"command":["true"],"timeout":3}`, "timeout"},
		"no time":               {`{"shell":"true","timeoutSeconds":0}`, "timeoutSeconds"},
		"negative output":       {`{"shell":"true","maxOutputBytes":-1}`, "maxOutputBytes"},
		"an impossible name":    {`{"shell":"true","env":{"A=B":"c"}}`, "env"},
		"a zero byte":           {`{"shell":"tr\u0000ue"}`, "zero byte"},
		"input that isn't text": {`{"shell":"true","stdin":"%%%"}`, "exec request"},
		"no JSON":               {`hello`, "exec request"},
		"two requests":          {`{"shell":"true"}{"shell":"true"}`, "more than one"},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(one.body))
			if one.wrong == "" && err != nil {
				t.Fatal(err)
			}
			if one.wrong != "" && (err == nil || !strings.Contains(err.Error(), one.wrong)) {
				t.Fatalf("error %v, should speak of %s", err, one.wrong)
			}
		})
	}
}

func TestTimeoutsAreBounded(t *testing.T) {
	cases := map[string]struct {
		seconds float64
		want    time.Duration
	}{
		"an ordinary one":   {1.5, 1500 * time.Millisecond},
		"a tiny one":        {1e-12, time.Millisecond},
		"an enormous one":   {1e300, 0},
		"longer than there": {longest.Seconds(), 0},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			if got := (Request{TimeoutSeconds: &one.seconds}).timeout(); got != one.want {
				t.Fatalf("%s, not %s", got, one.want)
			}
		})
	}
}

func TestEnvironmentsLieOverEachOther(t *testing.T) {
	base := []string{"HOME=/", "A=base", "B=base", MarkerName + "=another"}
	got := environ(base, []string{"HOME=/home/agent"}, map[string]string{"A": "asked", MarkerName: "faked"}, MarkerName+"=mine")
	want := []string{"A=asked", "B=base", "HOME=/home/agent", "PATH=" + defaultPath, MarkerName + "=mine"}
	if !slices.Equal(got, want) {
		t.Fatalf("%q, not %q", got, want)
	}
}
