package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func env(pairs ...string) func(string) string {
	m := map[string]string{"HOME": "/home/me"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

func TestSettingsDefaults(t *testing.T) {
	s, err := settingsFrom(env())
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]string{
		"state":    {s.State, "/var/lib/clew-devcluster"},
		"cache":    {s.Cache, "/home/me/.cache/clew/devcluster"},
		"node":     {s.nodeIP().String(), "10.215.0.2"},
		"machine":  {s.hostIP().String(), "10.215.0.1"},
		"API":      {s.apiURL(), "https://10.215.0.2:16443"},
		"services": {s.apiIP().String(), "10.214.0.1"},
		"DNS":      {s.dnsIP().String(), "10.214.0.10"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %s, want %s", what, pair[0], pair[1])
		}
	}
}

// TestInstancesDoNotMeet compares all instances' defaults to each other.
func TestInstancesDoNotMeet(t *testing.T) {
	var all []settings
	for n := range maxInstance + 1 {
		b, _ := json.Marshal(n)
		s, err := settingsFrom(env("CLEW_INSTANCE", string(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if s.State == o.State || s.name() == o.name() || s.link() == o.link() {
				t.Errorf("instances %d and %d share a name: %s, %s", s.Instance, o.Instance, s.State, s.name())
			}
			if s.PodCIDR.Overlaps(o.PodCIDR) || s.ServiceCIDR.Overlaps(o.ServiceCIDR) || s.LinkCIDR.Overlaps(o.LinkCIDR) {
				t.Errorf("instances %d and %d share addresses", s.Instance, o.Instance)
			}
		}
		all = append(all, s)
	}
}

func TestSettingsRefused(t *testing.T) {
	for name, c := range map[string]struct{ env, says []string }{
		"unknown cluster":     {[]string{"CLUSTER", "kind"}, []string{"CLUSTER", "current"}},
		"instance too large":  {[]string{"CLEW_INSTANCE", "16"}, []string{"CLEW_INSTANCE", "0 to 15"}},
		"instance a word":     {[]string{"CLEW_INSTANCE", "two"}, []string{"CLEW_INSTANCE"}},
		"relative state":      {[]string{"CLEW_STATE", "state"}, []string{"CLEW_STATE", "absolute"}},
		"state is root":       {[]string{"CLEW_STATE", "/"}, []string{"CLEW_STATE"}},
		"state too long":      {[]string{"CLEW_STATE", "/" + strings.Repeat("x", 60)}, []string{"sockets"}},
		"state in run":        {[]string{"CLEW_STATE", "/run/clew"}, []string{"/run"}},
		"not a network":       {[]string{"CLEW_POD_CIDR", "10.1.2.3/20"}, []string{"CLEW_POD_CIDR"}},
		"IPv6":                {[]string{"CLEW_SERVICE_CIDR", "fd00::/108"}, []string{"CLEW_SERVICE_CIDR", "IPv4"}},
		"link of other size":  {[]string{"CLEW_LINK_CIDR", "10.1.0.0/24"}, []string{"CLEW_LINK_CIDR"}},
		"overlapping":         {[]string{"CLEW_POD_CIDR", "10.214.0.0/16"}, []string{"overlap"}},
		"port not a number":   {[]string{"CLEW_API_PORT", "https"}, []string{"CLEW_API_PORT"}},
		"no home, no cache":   {[]string{"HOME", ""}, []string{"CLEW_CACHE"}},
		"port of a node port": {[]string{"CLEW_API_PORT", "30000"}, []string{"CLEW_API_PORT"}},
	} {
		_, err := settingsFrom(env(c.env...))
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", name, err, want)
			}
		}
	}
}

func TestCompareSettings(t *testing.T) {
	s, err := settingsFrom(env())
	if err != nil {
		t.Fatal(err)
	}
	saved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if diffs, err := compareSettings(saved, s); err != nil || len(diffs) != 0 {
		t.Errorf("equal settings: %v, %v", diffs, err)
	}
	s.APIPort, s.Cache = 20000, "/elsewhere"
	diffs, err := compareSettings(saved, s)
	if err != nil || len(diffs) != 1 || !strings.Contains(diffs[0], "apiPort was 16443 and is now asked to be 20000") {
		t.Errorf("another port: %v, %v", diffs, err)
	}
	if _, err := compareSettings([]byte("{"), s); err == nil {
		t.Error("a damaged file gives no error")
	}
}

func TestCurrentKubeconfig(t *testing.T) {
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"variable": {[]string{"KUBECONFIG", "/a:/b"}, "/a:/b"},
		"home":     {nil, "/home/me/.kube/config"},
	} {
		if got, err := currentKubeconfig(env(c.env...)); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := currentKubeconfig(env("HOME", "")); err == nil {
		t.Error("neither variable: no error")
	}
}
