package places

import "github.com/prometheus/client_golang/prometheus"

// Metrics returns the gauges of the places; none for a nil Places.
func (p *Places) Metrics() []prometheus.Collector {
	if p == nil {
		return nil
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	return []prometheus.Collector{
		gauge("clew_tasks_with_place", "Tasks that have a place among those that run at once.", func() int { running, _ := p.Count(); return running }),
		gauge("clew_tasks_queued", "Tasks that wait for a place.", func() int { _, waiting := p.Count(); return waiting }),
	}
}
