package main

import (
	"encoding/json"
	"slices"
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

// TestInstancesDoNotCollide compares the defaults of all instances with each other.
func TestInstancesDoNotCollide(t *testing.T) {
	var all []settings
	for n := range maxInstance + 1 {
		b, _ := json.Marshal(n)
		s, err := settingsFrom(env("CLEW_INSTANCE", string(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			for what, collide := range map[string]bool{
				"state folder":    s.State == o.State,
				"name":            s.name() == o.name(),
				"interface":       s.link() == o.link(),
				"pod network":     s.PodCIDR.Overlaps(o.PodCIDR),
				"service network": s.ServiceCIDR.Overlaps(o.ServiceCIDR),
				"link network":    s.LinkCIDR.Overlaps(o.LinkCIDR),
			} {
				if collide {
					t.Errorf("instances %d and %d share the %s", s.Instance, o.Instance, what)
				}
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
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"apiPort was 16443 and is now asked to be 20000"}; !slices.Equal(diffs, want) {
		t.Errorf("with another port and another cache: %q, want %q", diffs, want)
	}
	if _, err := compareSettings([]byte("{"), s); err == nil {
		t.Error("a damaged file is accepted")
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
		t.Error("a kubeconfig is found without KUBECONFIG and HOME")
	}
}
